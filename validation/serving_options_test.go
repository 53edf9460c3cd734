package validation

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/scheduler/serving"
)

func TestServingFlags(t *testing.T) {
	o, err := parse(t, strings.Fields("-backend cpu -rate 2.5 -constant-rate -requests 12 -serve-prompts 7 -serve-tokens 2-9 -slo-ttft 1s -slo-tpot 50ms -slo-e2el 1m")...)
	require.NoError(t, err)
	require.Equal(t, ServingOptions{Rate: 2.5, ConstantRate: true, Requests: 12, ServePrompts: Lengths{7, 7}, ServeTokens: Lengths{2, 9},
		SLO: serving.SLO{TTFT: time.Second, TPOT: 50 * time.Millisecond, E2EL: time.Minute}, PlanRequests: 1000}, o.ServingOptions)
	_, err = parse(t, "-plan-requests", "5") // planning needs no backend
	require.NoError(t, err)

	for args, want := range map[string]string{
		"-rate 1":                         "-rate has no effect without -backend cpu|cuda",
		"-backend cpu -rate -1":           "-rate -1: want 0.001 to 1e+06 requests a second, or 0 for a share of the capacity",
		"-backend cpu -rate NaN":          "-rate NaN: want 0.001 to 1e+06 requests a second, or 0 for a share of the capacity",
		"-backend cpu -requests -1":       "-requests -1: want 2, since a rate takes two, to 1000000, or 0 for as many as the time allows",
		"-backend cpu -requests 1":        "-requests 1: want 2, since a rate takes two, to 1000000, or 0 for as many as the time allows",
		"-backend cpu -rate 1e-9":         "-rate 1e-09: want 0.001 to 1e+06 requests a second, or 0 for a share of the capacity",
		"-backend cpu -requests 1000001":  "-requests 1000001: want 2, since a rate takes two, to 1000000, or 0 for as many as the time allows",
		"-plan-requests 0":                "-plan-requests 0: want 1 to 100000000",
		"-plan-requests 1000000000":       "-plan-requests 1000000000: want 1 to 100000000",
		"-backend cpu -serve-prompts 0-4": "-serve-prompts 0-4: want at least 1",
		"-backend cpu -serve-prompts 9-4": "-serve-prompts 9-4: want the smaller length first",
		"-backend cpu -serve-tokens 1-4":  "-serve-tokens 1-4: want at least 2: a request of one token has no time between tokens",
		"-backend cpu -serve-tokens some": `invalid value "some" for flag -serve-tokens: "some" is no range of lengths; want MIN-MAX, such as 8-160, or one length`,
		"-backend cpu -slo-tpot -5ms":     "-slo-tpot -5ms: want a positive time, or 0 for none",
	} {
		_, err := parse(t, strings.Fields(args)...)
		require.EqualError(t, err, want, args)
	}
}
