// Command endurance opens, feeds, steps and closes 10,000 sessions, and 200 models: over the second half of them the
// memory of the process stays where it was, and what malloc gave.
package main

// #include <malloc.h>
import "C"

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

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
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	must(err)
	var size, resident int64
	_, err = fmt.Sscan(string(text), &size, &resident)
	must(err)
	return resident * int64(os.Getpagesize())
}

// allocatedBytes are those that malloc gave: libkvc's, none of Go's.
func allocatedBytes() int64 {
	info := C.mallinfo2()
	return int64(info.uordblks) + int64(info.hblkhd)
}

// liveBytes are those of Go's objects that are still in use. Cleanups run beside the program, and what waits for one is
// let go by a later collection only: the least of several counts.
func liveBytes() (live int64) {
	for i := 0; i < 5; i++ {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		if i == 0 || int64(stats.HeapAlloc) < live {
			live = int64(stats.HeapAlloc)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return live
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
	part(sessions/2, models/2) // what the runtime and the allocator keep has come by then
	resident, allocated, live := residentBytes(), allocatedBytes(), liveBytes()
	part(sessions/2, models/2)
	resident, allocated, live = residentBytes()-resident, allocatedBytes()-allocated, liveBytes()-live
	fmt.Printf("grown by %d KiB, %d bytes allocated and %d of Go's objects, in %d sessions and %d models\n", resident>>10,
		allocated, live, sessions/2, models/2)
	// A leak of four bytes a session, or of 164 a model, is more than that; the runtime starts a thread when it likes,
	// and what is resident, files among it, comes and goes with it.
	if resident >= 8<<20 || allocated >= 16<<10 || live >= 64<<10 {
		os.Exit(1)
	}
}
