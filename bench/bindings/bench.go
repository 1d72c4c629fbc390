// Nanoseconds of a call that does nothing, and of a step: bench STORIES.kvc [context]; with a context that could end
// each step.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"kvc.dev/kvc"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func least(best float64, start time.Time, n int) float64 {
	each := float64(time.Since(start).Nanoseconds()) / float64(n)
	if each < best {
		return each
	}
	return best
}

func main() {
	start := time.Now()
	model, err := kvc.OpenModel(os.Args[1], nil)
	must(err)
	opening := float64(time.Since(start).Nanoseconds()) / 1e6
	session, err := model.NewSession(nil, nil)
	must(err)
	prompt, err := model.Tokenize("Once upon a time", kvc.AddBOS)
	must(err)
	ctx, cancel := context.Background(), func() {}
	if len(os.Args) > 2 {
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	call, step := 1e9, 1e9
	for round := 0; round < 20; round++ {
		start = time.Now()
		for i := 0; i < 20000; i++ {
			_, _ = session.Progress()
		}
		call = least(call, start, 20000)
		must(session.Reset())
		must(session.Prefill(ctx, prompt))
		start = time.Now()
		for i := 0; i < 200; i++ {
			_, err := session.Step(ctx)
			must(err)
		}
		step = least(step, start, 200)
	}
	fmt.Printf("%.0f %.0f %.1f\n", call, step, opening)
}
