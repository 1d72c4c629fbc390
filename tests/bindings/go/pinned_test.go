package tests

import (
	"os"
	"runtime"
	"syscall"
	"testing"

	"kvc.dev/kvc"
	"kvc.dev/kvc/tests/pinned"
)

// What the library goes on reading is pinned as long as something reads it, by those Go versions that can pin.
func TestMemoryIsPinned(t *testing.T) {
	data, err := os.ReadFile(os.Getenv("KVC_STORIES"))
	must(t, err)
	wanted := func(pins bool, when string) {
		t.Helper()
		if pinned.Is(&data[0]) != (pins && canPin) {
			t.Error("pinned, or not,", when)
		}
	}
	wanted(false, "before anything is opened")
	_, err = kvc.OpenModelMemory(data[:len(data)/2], nil)
	wants(t, kvc.ErrBadModel, err)
	wanted(false, "when it could not be opened")
	m, err := kvc.OpenModelMemory(data, nil)
	must(t, err)
	wanted(true, "while a model is open")
	s, err := m.NewSession(nil, nil)
	must(t, err)
	must(t, s.Prefill(ctx, []int32{1, 2, 3}))
	m.Close()
	fork, err := s.Fork()
	must(t, err)
	s.Close()
	wanted(true, "while a session is open")
	runtime.GC()
	_, err = fork.Step(ctx)
	must(t, err)
	fork.Close()
	wanted(false, "when all is closed")
	_, err = kvc.OpenModelMemory(nil, nil)
	wants(t, kvc.ErrInvalid, err)
}

// Mapped memory is not Go's, and there is nothing to pin.
func TestMappedMemoryIsUsed(t *testing.T) {
	file, err := os.Open(os.Getenv("KVC_STORIES"))
	must(t, err)
	defer file.Close()
	about, err := file.Stat()
	must(t, err)
	data, err := syscall.Mmap(int(file.Fd()), 0, int(about.Size()), syscall.PROT_READ, syscall.MAP_PRIVATE)
	must(t, err)
	m, err := kvc.OpenModelMemory(data, nil)
	must(t, err)
	s, err := m.NewSession(nil, nil)
	must(t, err)
	must(t, s.Prefill(ctx, []int32{1, 2, 3}))
	s.Close()
	m.Close()
	must(t, syscall.Munmap(data))
}
