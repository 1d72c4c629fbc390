// Command endurance opens, feeds, steps and closes 10,000 sessions, and 200 models: memory stays where it was.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"kvc.dev/kvc"
)

const sessions, models = 10000, 200

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func cycle(model *kvc.Model, policy *kvc.Policy, tokens []int32) {
	session, err := model.NewSession(policy, nil)
	must(err)
	defer session.Close()
	must(session.Prefill(context.Background(), tokens))
	_, err = session.Step(context.Background())
	must(err)
	_, err = session.ReadText()
	must(err)
}

// residentBytes are those of this process in memory.
func residentBytes() (bytes int64) {
	runtime.GC()
	text, err := os.ReadFile("/proc/self/statm")
	must(err)
	var size, resident int64
	_, err = fmt.Sscan(string(text), &size, &resident)
	must(err)
	return resident * int64(os.Getpagesize())
}

func main() {
	model, err := kvc.OpenModel(os.Getenv("KVC_STORIES"), nil)
	must(err)
	policy, err := kvc.NewPolicy("snapkv:budget=16,window=4")
	must(err)
	tokens, err := model.Tokenize("Once upon a time there was a little dog", kvc.AddBOS)
	must(err)
	part := func(sessions, models int) {
		for i := 0; i < sessions; i++ {
			cycle(model, policy, tokens)
		}
		for i := 0; i < models; i++ {
			m, err := kvc.OpenModel(os.Getenv("KVC_RECALL"), nil)
			must(err)
			m.Close()
		}
	}
	part(sessions/5, models/5) // what the runtime and the allocator keep has come by then
	early := residentBytes()
	part(sessions*4/5, models*4/5)
	grown := residentBytes() - early
	fmt.Printf("grown by %d KiB in %d sessions and %d models\n", grown>>10, sessions*4/5, models*4/5)
	// A leak of 1 KiB a session, or of 50 KiB a model, is more than that.
	if grown >= 8<<20 {
		os.Exit(1)
	}
}
