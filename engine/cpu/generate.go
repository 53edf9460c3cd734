package cpu

//go:generate go -C gen run ./tile -out ../tile_amd64.s -stubs ../tile_amd64.go -pkg cpu
//go:generate go -C gen run ./dots -out ../dots_amd64.s -stubs ../dots_amd64.go -pkg cpu
//go:generate go -C gen run ./vector -out ../vector_amd64.s -stubs ../vector_amd64.go -pkg cpu
//go:generate go -C gen run ./mixer -out ../mixer_amd64.s -stubs ../mixer_amd64.go -pkg cpu
