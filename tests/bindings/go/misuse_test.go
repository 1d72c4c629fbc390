package tests

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"kvc.dev/kvc"
)

// What no program should do ends in an error that says so.
func TestClosed(t *testing.T) {
	s, err := model.NewSession(nil, nil)
	must(t, err)
	m, err := kvc.OpenModel(os.Getenv("KVC_STORIES"), nil)
	must(t, err)
	p, l := policy(t, "full"), &kvc.Loader{}
	for i := 0; i < 2; i++ { // and twice
		must(t, s.Close())
		must(t, m.Close())
		must(t, p.Close())
		must(t, l.Close())
	}
	closedSessions := []*kvc.Session{s, nil, {}}
	for _, s := range closedSessions {
		_, stepErr := s.Step(ctx)
		_, textErr := s.ReadText()
		_, statsErr := s.Stats()
		_, forkErr := s.Fork()
		_, keptErr := s.Kept(0, 0)
		_, bytesErr := s.SaveBytes()
		_, logitsErr := s.Logits(ctx, make([]float32, 2048))
		_, trimErr := s.Trim(ctx, 8)
		_, progressErr := s.Progress()
		stream := s.Generate(ctx, "text", 3)
		if stream.Next() {
			t.Error("text of a closed session")
		}
		for i, err := range []error{stepErr, textErr, statsErr, forkErr, keptErr, bytesErr, logitsErr, trimErr, progressErr,
			stream.Err(), s.Prefill(ctx, []int32{1}), s.Append(ctx, []int32{1}), s.Compress(ctx), s.Enqueue([]int32{1}, true),
			s.Say(ctx, kvc.RoleUser, "", 0), s.SetTurnMarks(kvc.RoleUser, "", ""), s.ResetTurnMarks(kvc.RoleUser),
			s.Accept(ctx, 1), s.SetSampling(nil), s.SetLogitBias(nil), s.SetTokenMask(nil), s.Reset(), s.Cancel(),
			s.ClearCancel(), s.Rewind(1), s.Save("x"), s.Read(ctx, "text")} {
			if !errors.Is(err, kvc.ErrClosed) {
				t.Errorf("call %d: %v", i, err)
			}
		}
	}
	for _, m := range []*kvc.Model{m, nil, {}} {
		_, infoErr := m.Info()
		_, textErr := m.Tokenize("a", 0)
		_, backErr := m.Detokenize([]int32{1})
		_, sessionErr := m.NewSession(nil, nil)
		_, restoreErr := m.Restore("x")
		_, planErr := m.Plan(nil, nil, 3)
		_, promptErr := m.Prompt("a")
		for i, err := range []error{infoErr, textErr, backErr, sessionErr, restoreErr, planErr, promptErr} {
			if !errors.Is(err, kvc.ErrClosed) {
				t.Errorf("call %d: %v", i, err)
			}
		}
	}
	_, err = model.NewSession(p, nil)
	wants(t, kvc.ErrClosed, err)
	_, err = l.Open(ctx, "x", nil)
	wants(t, kvc.ErrClosed, err)
	wants(t, kvc.ErrClosed, l.Cancel())
}

func TestBadArguments(t *testing.T) {
	s := reading(t)
	_, openErr := kvc.OpenModel("a\x00b", nil)
	_, specErr := kvc.NewPolicy("full\x00")
	_, idErr := model.Detokenize([]int32{1, math.MaxInt32})
	_, flagErr := model.Tokenize("a", 64)
	_, planErr := model.Plan(nil, nil, 0)
	_, fullErr := model.NewSession(nil, &kvc.SessionOptions{OnFull: 9})
	_, emptyErr := kvc.OpenModelMemory(nil, nil)
	_, noneErr := model.RestoreBytes(nil)
	for i, err := range []error{openErr, specErr, idErr, flagErr, planErr, fullErr, s.Prefill(ctx, nil),
		s.Prefill(ctx, []int32{}), s.Append(ctx, []int32{-1}), s.Save("a\x00b"), s.SetTurnMarks(kvc.RoleUser, "\x00", ""),
		s.SetTurnMarks(77, "", ""), s.Accept(ctx, -1), s.Rewind(-1), s.SetTokenMask(make([]int32, 3)),
		s.SetLogitBias(map[int32]float32{1: float32(math.NaN())})} {
		if !errors.Is(err, kvc.ErrInvalid) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	for i, err := range []error{emptyErr, noneErr} {
		var failed *kvc.Error
		if !errors.As(err, &failed) || failed.Message == "" {
			t.Errorf("empty %d: %v", i, err)
		}
	}
	empty, err := model.Tokenize("", 0)
	if err != nil || len(empty) != 0 {
		t.Error(empty, err)
	}
	bytes, err := model.Tokenize("a\xff\x00b", 0) // no UTF-8, a NUL: text may be any bytes
	if err != nil || len(bytes) == 0 {
		t.Error(bytes, err)
	}
	_, err = kvc.OpenModel("no such file", nil)
	wants(t, kvc.ErrIO, err)
	answer(t, s, 1)
}

func TestContext(t *testing.T) {
	s := reading(t)
	done, cancel := context.WithCancel(ctx)
	cancel()
	err := s.Prefill(done, tokens(t, story))
	wants(t, context.Canceled, err)
	wants(t, kvc.ErrCancelled, err)
	// Ended while it works: the time-out comes in the middle of a prompt that takes longer.
	long := session(t, nil, &kvc.SessionOptions{OnFull: kvc.OnFullEvict})
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	err = long.Prefill(short, tokens(t, strings.Repeat(story, 400)))
	wants(t, context.DeadlineExceeded, err)
	wants(t, kvc.ErrCancelled, err)
	must(t, long.Prefill(ctx, tokens(t, story))) // as if nothing had been
	// Ended between two steps: the next stream goes on.
	streaming, end := context.WithCancel(ctx)
	stream := s.Generate(streaming, "", 50)
	stream.Next()
	end()
	if stream.Next() {
		t.Error("text behind the end")
	}
	wants(t, context.Canceled, stream.Err())
	answer(t, s, 1)
	// Cancel is asked for and stays asked for, until it is answered or withdrawn.
	must(t, s.Cancel())
	_, err = s.Step(ctx)
	wants(t, kvc.ErrCancelled, err)
	must(t, s.Cancel())
	must(t, s.ClearCancel())
	answer(t, s, 1)
	loader, err := kvc.NewLoader()
	must(t, err)
	defer loader.Close()
	_, err = loader.Open(done, os.Getenv("KVC_STORIES"), nil)
	wants(t, context.Canceled, err)
	must(t, loader.Cancel())
	_, err = loader.Open(ctx, os.Getenv("KVC_STORIES"), nil)
	wants(t, kvc.ErrCancelled, err)
	must(t, loader.Cancel())
	must(t, loader.ClearCancel())
	model, err := loader.Open(ctx, os.Getenv("KVC_STORIES"), nil)
	must(t, err)
	model.Close()
}

// Close from another goroutine, while one generates and others ask.
func TestCloseWhileUsed(t *testing.T) {
	for round := 0; round < 20; round++ {
		s, err := model.NewSession(nil, &kvc.SessionOptions{OnFull: kvc.OnFullEvict})
		must(t, err)
		var users sync.WaitGroup
		begun := make(chan struct{}, 3)
		use := func(call func() error) {
			users.Add(1)
			go func() {
				defer users.Done()
				for first := true; ; first = false {
					err := call()
					if errors.Is(err, kvc.ErrClosed) {
						return
					}
					if err != nil && !errors.Is(err, kvc.ErrBusy) && !errors.Is(err, kvc.ErrInvalid) {
						t.Error(err)
					}
					if first {
						begun <- struct{}{}
					}
				}
			}()
		}
		use(func() error { return s.Prefill(ctx, tokens(t, story)) })
		use(func() error { _, err := s.Step(ctx); return err })
		use(func() error { _, err := s.Progress(); return err })
		for i := 0; i < 3; i++ {
			<-begun
		}
		must(t, s.Close())
		users.Wait()
	}
}

// Nobody takes back the cancel of a Close, whenever they ask.
func TestCloseWhileClearing(t *testing.T) {
	ids := tokens(t, strings.Repeat(story, 40))
	for round := 0; round < 30; round++ {
		s, err := model.NewSession(nil, &kvc.SessionOptions{OnFull: kvc.OnFullEvict})
		must(t, err)
		read, cleared := make(chan error, 1), make(chan error, 1)
		go func() { read <- s.Prefill(ctx, ids) }()
		go func() {
			for {
				if err := s.ClearCancel(); err != nil {
					cleared <- err
					return
				}
			}
		}()
		for share := 1.0; share == 1; { // it does not read yet
			share, err = s.Progress()
			must(t, err)
		}
		must(t, s.Close())
		wants(t, kvc.ErrClosed, <-cleared)
		wants(t, kvc.ErrClosed, <-read)
	}
}

// Close from another goroutine, while a loader opens a model.
func TestCloseWhileOpening(t *testing.T) {
	for round := 0; round < 20; round++ {
		loader, err := kvc.NewLoader()
		must(t, err)
		ended := make(chan error, 1)
		go func() {
			for {
				m, err := loader.Open(ctx, os.Getenv("KVC_RECALL"), nil)
				if err != nil {
					ended <- err
					return
				}
				m.Close()
			}
		}()
		for share := 1.0; share == 1; { // none runs yet
			share, err = loader.Progress()
			must(t, err)
		}
		must(t, loader.Close())
		wants(t, kvc.ErrClosed, <-ended)
	}
}

// A batch that has a session twice uses it already when it meets it again. A Close that comes in between waits for the
// batch, which may not wait for the Close.
func TestCloseBesideABatch(t *testing.T) {
	others := make([]*kvc.Session, 200) // that take a while; a Close behind a failure would wait, too
	for i := range others {
		var err error
		others[i], err = model.NewSession(nil, nil)
		must(t, err)
	}
	for round := 0; round < 200; round++ {
		s, err := model.NewSession(nil, nil)
		must(t, err)
		twice := append(append([]*kvc.Session{s}, others...), s)
		begun, ended, closed := make(chan struct{}), make(chan error, 1), make(chan error, 1)
		go func() {
			close(begun)
			ended <- kvc.BatchStep(twice, nil, make([]int32, len(twice)), nil)
		}()
		<-begun
		go func() { closed <- s.Close() }()
		for _, outcome := range []chan error{ended, closed} {
			select {
			case err := <-outcome:
				if err != nil && !errors.Is(err, kvc.ErrBusy) && !errors.Is(err, kvc.ErrClosed) {
					t.Fatal(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the batch and the Close wait for each other")
			}
		}
	}
	for _, s := range others {
		must(t, s.Close())
	}
}

// Who uses what nobody closes is never told that it is closed.
func TestManyUsers(t *testing.T) {
	var users sync.WaitGroup
	for i := 0; i < 8; i++ {
		users.Add(1)
		go func() {
			defer users.Done()
			for n := 0; n < 5000; n++ {
				if _, err := model.Info(); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	users.Wait()
}

func TestBusy(t *testing.T) {
	s := session(t, nil, &kvc.SessionOptions{OnFull: kvc.OnFullEvict})
	ids := tokens(t, strings.Repeat(story, 60))
	read := make(chan error)
	go func() {
		for {
			if err := s.Prefill(ctx, ids); !errors.Is(err, kvc.ErrBusy) { // which it is while this test asks
				read <- err
				return
			}
		}
	}()
	busy := 0
	for {
		_, err := s.Stats()
		if errors.Is(err, kvc.ErrBusy) {
			busy++
		}
		select {
		case err := <-read:
			must(t, err)
			if busy == 0 {
				t.Error("the session was never busy")
			}
			return
		default:
		}
	}
}

// Goroutines move between threads; each error has the text of its own call.
func TestErrorsOfGoroutines(t *testing.T) {
	var all sync.WaitGroup
	for _, name := range []string{"alpha", "beta", "gamma", "delta"} {
		all.Add(1)
		go func(name string) {
			defer all.Done()
			for i := 0; i < 500; i++ {
				if _, err := kvc.NewPolicy(name); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%s: %v", name, err)
				}
				runtime.Gosched()
			}
		}(name)
	}
	all.Wait()
}

// What nobody closes the collector does, sessions before or behind their model.
func TestNeverClosed(t *testing.T) {
	for i := 0; i < 50; i++ {
		m, err := kvc.OpenModel(os.Getenv("KVC_STORIES"), nil)
		must(t, err)
		s, err := m.NewSession(nil, nil)
		must(t, err)
		if i%2 == 0 {
			m.Close()
		}
		must(t, s.Prefill(ctx, []int32{1, 2, 3}))
		_, err = s.Step(ctx)
		must(t, err)
	}
	runtime.GC()
	runtime.GC()
	longest := session(t, nil, nil)
	must(t, longest.Prefill(ctx, tokens(t, strings.Repeat(story, 24))))
	saved, err := longest.SaveBytes()
	must(t, err)
	if len(saved) < 3<<20 {
		t.Fatalf("a session of %d bytes only", len(saved))
	}
	before := residentBytes(t)
	for i := 0; i < 300; i++ { // more than a gigabyte, if nobody gave them back
		_, err := model.RestoreBytes(saved)
		must(t, err)
		if i%20 == 19 {
			runtime.GC()
			time.Sleep(20 * time.Millisecond)
		}
	}
	if grown := residentBytes(t) - before; grown >= 300<<20 {
		t.Fatalf("grown by %d MiB", grown>>20)
	}
}

// residentBytes are those of this process in memory.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	must(t, err)
	var size, resident int64
	_, err = fmt.Sscan(string(text), &size, &resident)
	must(t, err)
	return resident * int64(os.Getpagesize())
}

func TestPanicWhileStreaming(t *testing.T) {
	s := reading(t)
	func() {
		defer func() { _ = recover() }()
		stream := s.Generate(ctx, "", 20)
		for stream.Next() {
			panic("of the program")
		}
	}()
	answer(t, s, 1)
}

// endWithOpenSessions ends this process with everything open, one session that generates among it.
func endWithOpenSessions(ending string) {
	begun := make(chan struct{})
	for i := 0; i < 20; i++ {
		s, err := model.NewSession(nil, &kvc.SessionOptions{OnFull: kvc.OnFullSlide})
		if err != nil || s.Prefill(ctx, []int32{1, 2, 3}) != nil {
			os.Exit(9)
		}
		if i > 0 {
			continue
		}
		go func() {
			for n := 0; ; n++ {
				if _, err := s.Step(ctx); err != nil || s.Accept(ctx, 5) != nil {
					os.Exit(9)
				}
				if n == 3 {
					close(begun)
				}
			}
		}()
	}
	<-begun
	switch ending {
	case "exit":
		os.Exit(3)
	case "panic":
		panic("of the program")
	}
}

func TestEndWithOpenSessions(t *testing.T) {
	for ending, code := range map[string]int{"return": 0, "exit": 3, "panic": 2} {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), "KVC_TEST_ENDING="+ending)
		said, _ := command.CombinedOutput()
		if command.ProcessState.ExitCode() != code || strings.Contains(string(said), "SIG") ||
			strings.Contains(string(said), "RACE") || strings.Contains(string(said), "panic: of the program") != (code == 2) {
			t.Errorf("%s: %v, %s", ending, command.ProcessState, said)
		}
	}
}
