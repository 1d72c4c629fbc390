// Package kvc runs language models on a compressed KV cache, with libkvc. Begin with OpenModel:
//
//	model, err := kvc.OpenModel("recall.kvc", nil)
//	...
//	defer model.Close()
//	session, err := model.NewSessionSpec("snapkv:budget=64,window=8", nil)
//	...
//	defer session.Close()
//	stream := session.Generate(ctx, "The code of Robin is 386. The code of Robin is", 4)
//	for stream.Next() {
//		fmt.Print(stream.Text())
//	}
//	err = stream.Err()
//
// Everything that has a Close may be closed at any time, also while another goroutine uses it, twice, or never (the
// garbage collector then does it). A closed one answers ErrClosed. A failed call of the library is an *Error;
// errors.Is compares it with the Err constants. A Model may be used by any number of goroutines at once, a Session by
// one at a time (a second one gets ErrBusy), but for Cancel, ClearCancel, Progress and Close.
package kvc

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"kvc.dev/kvc/internal/flat"
)

// Status says what kind of failure an Error is. The constants are errors themselves, for errors.Is.
type Status int32

// What a call can fail with.
const (
	ErrInvalid        Status = -1  // an argument is wrong; the text says which and what is right
	ErrMemory         Status = -2  // no memory left, or a limit of ModelOptions.MemoryLimit
	ErrIO             Status = -3  // a file cannot be read or written
	ErrBadModel       Status = -4  // the model file is damaged, or newer than the library
	ErrUnsupported    Status = -5  // not by this build, this device or this model
	ErrNotFound       Status = -6  // no such method, or no such head scores
	ErrBufferTooSmall Status = -7  // of a slice the caller gave
	ErrContextFull    Status = -8  // SessionOptions.MaxTokens are held
	ErrCancelled      Status = -9  // by Cancel or by a context
	ErrDevice         Status = -10 // the device failed
	ErrBusy           Status = -11 // another goroutine uses the session
	ErrInternal       Status = -99
)

// Error returns the name that kvc.h gives the status.
func (s Status) Error() string { return flat.Kvc_status_name(int32(s)) }

// ErrClosed is what a closed, nil or zero Model, Policy, Session or Loader answers.
var ErrClosed = errors.New("kvc: closed")

// Error is a call that the library refused or could not finish.
type Error struct {
	Status  Status
	Message string // what was wrong, for people
	cause   error  // of the context that ended the call
}

// Error is the message, with the name of the status behind it.
func (e *Error) Error() string { return fmt.Sprintf("kvc: %s (%v)", e.Message, e.Status) }

// Is makes errors.Is(err, kvc.ErrContextFull) work.
func (e *Error) Is(target error) bool { return target == e.Status }

// Unwrap gives the error of the context that ended the call, or nil.
func (e *Error) Unwrap() error { return e.cause }

func invalid(format string, args ...any) error {
	return &Error{Status: ErrInvalid, Message: fmt.Sprintf(format, args...)}
}

// checked makes a facade's error of a flat one.
func checked(err error) error {
	if err == nil {
		return nil
	}
	if failed, ok := err.(*flat.Failure); ok {
		return &Error{Status: Status(failed.Status), Message: failed.Text}
	}
	return err
}

func tooSmall(err error) bool {
	failed, ok := err.(*flat.Failure)
	return ok && Status(failed.Status) == ErrBufferTooSmall
}

// cstring is text with the NUL that C wants behind it.
func cstring(text string) (*byte, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return nil, invalid("%q has a NUL in it", text)
	}
	return &append([]byte(text), 0)[0], nil
}

// fetch asks for elements in a buffer of guess, and again in one of the right size.
func fetch[T any](guess int, call func(buffer []T, n *int32) error) ([]T, error) {
	buffer := make([]T, guess)
	for {
		var n int32
		err := call(buffer, &n)
		if err == nil && int(n) <= len(buffer) {
			return buffer[:n], nil
		}
		if err != nil && !tooSmall(err) || int(n) <= len(buffer) {
			return nil, checked(err)
		}
		buffer = make([]T, n)
	}
}

func fetchText(call func(buffer []byte, n *int32) error) (string, error) {
	text, err := fetch(4096, call)
	return string(text), err
}

// handle is what the library gave, and the way to give it back when nobody is using it. It is apart from what the
// caller has, which the collector can therefore tell to be unused.
type handle struct {
	using  sync.RWMutex // read: calls that run
	gate   sync.Mutex   // close and what would take its cancel back
	closed atomic.Bool
	native uintptr
	free   func(uintptr)
	cancel func(uintptr) error // may be nil
	memory []byte              // that the library reads while this is open; for who uses it
	unpin  func()              // may be nil
}

// use gives the native handle, and done must follow; or ErrClosed. It waits for nobody: a caller that uses the handle
// already would wait for a close that waits for it. What cannot be had is being closed, as nothing else locks it.
func (h *handle) use() (uintptr, error) {
	if h == nil {
		return 0, ErrClosed
	}
	for !h.using.TryRLock() {
		if h.closed.Load() {
			return 0, ErrClosed
		}
		runtime.Gosched() // TryRLock promises less than it does: it may fail for no reason
	}
	if h.closed.Load() {
		h.using.RUnlock()
		return 0, ErrClosed
	}
	return h.native, nil
}

func (h *handle) done() { h.using.RUnlock() }

// ended says ErrClosed of a call that close has cancelled.
func (h *handle) ended(err error) error {
	err = checked(err)
	if errors.Is(err, ErrCancelled) && h.closed.Load() {
		return ErrClosed
	}
	return err
}

// close stops what runs, waits for it and frees.
func (h *handle) close() {
	if h == nil || !h.begin() {
		return
	}
	h.using.Lock()
	defer h.using.Unlock()
	h.free(h.native)
	if h.unpin != nil {
		h.unpin()
	}
	h.native, h.memory, h.unpin = 0, nil, nil
}

// begin is the part of close that waits for nobody, or false where it has been.
func (h *handle) begin() bool {
	h.gate.Lock()
	defer h.gate.Unlock()
	if h.closed.Swap(true) {
		return false
	}
	if h.cancel != nil {
		_ = h.cancel(h.native) // fails for no reason that would matter to one that closes
	}
	return true
}

// withdraw takes a cancel back, but not that of close.
func withdraw(owner any, h *handle, clearCancel func(native uintptr) error) error {
	return with(owner, h, func(native uintptr) error {
		h.gate.Lock()
		defer h.gate.Unlock()
		if h.closed.Load() {
			return ErrClosed
		}
		return clearCancel(native)
	})
}

// with runs one call on a handle whose owner stays reachable during it, or the collector would close it.
func with(owner any, h *handle, call func(native uintptr) error) error {
	native, err := h.use()
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(owner)
	defer h.done()
	return h.ended(call(native))
}

// fits refuses a library whose functions and structs may be others than those this package was compiled for.
func fits() error {
	if loaded := flat.Kvc_version(); !flat.Fits(loaded, int32(flat.KVC_VERSION)) {
		return &Error{Status: ErrUnsupported, Message: fmt.Sprintf(
			"this program was built for libkvc %s and has loaded libkvc %s: build it again, or let it find the right "+
				"libkvc.so (LD_LIBRARY_PATH, or what pkg-config says of kvc)", number(int32(flat.KVC_VERSION)), number(loaded))}
	}
	return nil
}

// Version of the library that is loaded, as "0.1.0".
func Version() string { return number(flat.Kvc_version()) }

func number(v int32) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// SchemaVersion is that of the newest model file the library reads.
func SchemaVersion() int32 { return flat.Kvc_schema_version() }

// Devices describes each kind of device that the library knows, as JSON: name, summary, available and more.
func Devices() ([]string, error) {
	devices := make([]string, flat.Kvc_device_count())
	for i := range devices {
		var err error
		devices[i], err = fetchText(func(b []byte, n *int32) error { return flat.Kvc_device_describe(int32(i), b, n) })
		if err != nil {
			return nil, err
		}
	}
	return devices, nil
}

// MeasureDevice gives the bytes per second that device index of Devices reads from its memory. Takes up to a second.
func MeasureDevice(index int32) (float64, error) {
	var rate float64
	err := flat.Kvc_device_measure(index, &rate)
	return rate, checked(err)
}

// DraftLookup gives a draft for Session.StepDraft from the text itself: at most so many of the tokens that followed
// the last nGram (1 to 64; two at least where so many stood nowhere before) where they stood before, perhaps none.
// Good where an answer repeats its prompt.
func DraftLookup(tokens []int32, most int, nGram int32) ([]int32, error) {
	if most < 0 {
		most = 0
	}
	draft := make([]int32, most)
	var n int32
	if err := flat.Kvc_draft_lookup(tokens, nGram, draft, &n); err != nil {
		return nil, checked(err)
	}
	return draft[:n], nil
}

// Methods are the names of the compression methods.
func Methods() []string {
	names := make([]string, flat.Kvc_method_count())
	for i := range names {
		names[i] = flat.Kvc_method_name(int32(i))
	}
	return names
}

// DescribeMethod is method index of Methods as JSON: its options with their ranges and defaults.
func DescribeMethod(index int32) (string, error) {
	return fetchText(func(b []byte, n *int32) error { return flat.Kvc_method_describe(index, b, n) })
}

// LogLevel says how much a line of the log matters.
type LogLevel int32

// The levels of the log.
const (
	LogDebug LogLevel = iota
	LogInfo
	LogWarning
	LogError
)

// StartLog keeps the library's lines of this level and above for PollLog, the newest 256.
func StartLog(level LogLevel) { flat.Kvc_log_start(int32(level)) }

// StopLog ends what StartLog began. Lines that were kept can still be polled.
func StopLog() { flat.Kvc_log_stop() }

// PollLog takes the oldest line that was kept; ok is false when there is none.
func PollLog() (level LogLevel, line string, ok bool) {
	out := int32(-1)
	text, err := fetch(512, func(b []byte, n *int32) error { return flat.Kvc_log_poll(&out, b, n) })
	return LogLevel(out), string(text), err == nil && out >= 0
}

// Policy is a compression method and its options. Sessions copy it.
type Policy struct{ h *handle }

// NewPolicy makes a policy of a spec like "cokv:budget=128,window=8" (docs/methods.md). ErrNotFound: no such method;
// ErrInvalid: a wrong option, and the text names the right ones.
func NewPolicy(spec string) (*Policy, error) {
	text, err := cstring(spec)
	if err != nil {
		return nil, err
	}
	if err := fits(); err != nil {
		return nil, err
	}
	var native uintptr
	if err := flat.Kvc_policy_create(text, &native); err != nil {
		return nil, checked(err)
	}
	p := &Policy{&handle{native: native, free: flat.Kvc_policy_close}}
	closeWhenUnused(p, p.h)
	return p, nil
}

func (p *Policy) handle() *handle {
	if p == nil {
		return nil
	}
	return p.h
}

// Close frees the policy. Always nil.
func (p *Policy) Close() error {
	p.handle().close()
	return nil
}

// Describe is the whole spec, defaults written out.
func (p *Policy) Describe() (text string, err error) {
	err = with(p, p.handle(), func(native uintptr) error {
		text, err = fetchText(func(b []byte, n *int32) error { return flat.Kvc_policy_describe(native, b, n) })
		return err
	})
	return text, err
}

// SetHeadScores replaces the model's head scores: [layers, KV heads] in layer order, higher is more important.
func (p *Policy) SetHeadScores(scores []float32) error {
	return with(p, p.handle(), func(native uintptr) error { return flat.Kvc_policy_set_head_scores(native, scores) })
}

// SetTable gives method "table" its slots: [layers, KV heads] in layer order.
func (p *Policy) SetTable(slots []int32) error {
	return with(p, p.handle(), func(native uintptr) error { return flat.Kvc_policy_set_table(native, slots) })
}
