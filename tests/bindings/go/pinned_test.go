package tests

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"kvc.dev/kvc"
	"kvc.dev/kvc/tests/pinned"
)

// A session whose model and whose origin, s, are closed.
func forkOfClosed(t *testing.T, m *kvc.Model) (fork, s *kvc.Session) {
	t.Helper()
	s, err := m.NewSession(nil, nil)
	must(t, err)
	must(t, s.Prefill(ctx, []int32{1, 2, 3}))
	m.Close()
	fork, err = s.Fork()
	must(t, err)
	s.Close()
	return fork, s
}

// Memory that a model was opened in stays as long as something reads it, and no longer.
func TestMemoryIsLetGo(t *testing.T) {
	free := make(chan bool, 1)
	data, err := os.ReadFile(os.Getenv("KVC_STORIES"))
	must(t, err)
	runtime.SetFinalizer(&data[0], func(*byte) { free <- true })
	m, err := kvc.OpenModelMemory(data, nil)
	must(t, err)
	data = nil
	fork, s := forkOfClosed(t, m)
	for i := 0; i < 3; i++ {
		runtime.GC()
	}
	if _, err := fork.Step(ctx); err != nil || len(free) != 0 {
		t.Error("a session lost the memory of its model:", err)
	}
	fork.Close()
	for i := 0; i < 100 && len(free) == 0; i++ {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if len(free) == 0 {
		t.Error("what is closed keeps the memory of a model")
	}
	runtime.KeepAlive(m)
	runtime.KeepAlive(s)
	runtime.KeepAlive(fork)
}

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
	fork, _ := forkOfClosed(t, m)
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
