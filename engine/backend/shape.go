package backend

import "fmt"

// MatrixShape is what the parts of a matrix come to.
type MatrixShape struct {
	Rows    int // of all parts together
	Outputs int // Rows, or half of them in the form GateUp
	Inputs  int
	DType   DType // BF16 if every part is
}

// ShapeOf finds the shape of a matrix, or says which part does not fit. Every
// backend's NewMatrix begins with it.
func ShapeOf(form Form, parts []Source) (MatrixShape, error) {
	s := MatrixShape{DType: BF16}
	if len(parts) == 0 {
		return s, fmt.Errorf("a matrix of no parts")
	}
	for _, p := range parts {
		shape := p.Shape()
		if len(shape) != 2 || shape[0] < 1 || shape[1] < 1 {
			return s, fmt.Errorf("%s: shape %v, want [outputs, inputs]", p.Name(), shape)
		}
		if s.Inputs != 0 && shape[1] != s.Inputs {
			return s, fmt.Errorf("%s: %d inputs, but %s has %d", p.Name(), shape[1], parts[0].Name(), s.Inputs)
		}
		s.Inputs = shape[1]
		s.Rows += shape[0]
		if p.DType() != BF16 {
			s.DType = F32
		}
	}
	s.Outputs = s.Rows
	if form == GateUp {
		if len(parts) != 2 || parts[0].Shape()[0] != parts[1].Shape()[0] {
			return s, fmt.Errorf("%s: gate and up are not two parts of one shape", parts[0].Name())
		}
		s.Outputs = s.Rows / 2
	}
	return s, nil
}
