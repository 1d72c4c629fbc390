package kvc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"kvc.dev/kvc/internal/flat"
)

// OnFull says what happens when MaxTokens are held.
type OnFull int32

// What a session does when it is full.
const (
	OnFullError OnFull = iota // ErrContextFull
	OnFullEvict               // old entries leave, positions go on counting
	OnFullSlide               // old entries leave, positions are counted in slots: an endless conversation
)

// SessionOptions of Model.NewSession; zero values are defaults.
type SessionOptions struct {
	// MaxTokens of prompt and answer; 0 = trained context of the model, or 2^26 where the policy drops at steps and
	// counts positions in slots (streaming).
	MaxTokens   int32
	OnFull      OnFull
	TopK        int32 // from here on: as in Sampling
	TopP        float32
	Temperature float32
	Seed        int64

	MinP          float32
	RepeatPenalty float32
	RepeatWindow  int32
}

// more is the sampling that the library's parameters of a session have no fields for; nil where none of it is set.
func (o *SessionOptions) more() *Sampling {
	if o == nil || o.MinP == 0 && o.RepeatPenalty == 0 && o.RepeatWindow == 0 {
		return nil
	}
	return &Sampling{o.TopK, o.TopP, o.Temperature, o.Seed, o.MinP, o.RepeatPenalty, o.RepeatWindow}
}

func (o *SessionOptions) flat() (params flat.Kvc_session_params, release func()) {
	if o == nil {
		return nil, func() {}
	}
	params = flat.NewKvc_session_params()
	params.SetMax_tokens(o.MaxTokens)
	params.SetOn_full(int32(o.OnFull))
	params.SetTop_k(o.TopK)
	params.SetTop_p(o.TopP)
	params.SetTemperature(o.Temperature)
	params.SetSeed(o.Seed)
	return params, func() { flat.DeleteKvc_session_params(params) }
}

// Sampling says how steps choose; zero values are off, all off is greedy.
type Sampling struct {
	TopK          int32
	TopP          float32 // in (0, 1]
	Temperature   float32
	Seed          int64
	MinP          float32 // in (0, 1]: tokens of at least this share of the likeliest one's probability
	RepeatPenalty float32 // to 100; 1 = off
	RepeatWindow  int32   // tokens it looks back, at most 512; 0 = 64
}

// Session is one KV cache, one sampler and one stream of text.
type Session struct {
	h     *handle
	model *Model
	busy  atomic.Bool // a call that is for one goroutine at a time runs
	out   *outputs
}

// outputs is what the library writes to in every step; apart, as it may not see memory that has pointers of Go.
type outputs struct {
	token, n int32
	text     [1024]byte
}

func (m *Model) withPolicy(policy *Policy, options *SessionOptions,
	call func(model, policy uintptr, params flat.Kvc_session_params) error) error {
	params, release := options.flat()
	defer release()
	return with(m, m.handle(), func(native uintptr) error {
		if policy == nil {
			return call(native, 0, params)
		}
		return with(policy, policy.h, func(nativePolicy uintptr) error { return call(native, nativePolicy, params) })
	})
}

// newSession is for calls on from, whose memory the session reads too.
func newSession(native uintptr, model *Model, from *handle) *Session {
	s := &Session{model: model, out: &outputs{}, h: &handle{native: native, free: flat.Kvc_session_close,
		cancel: flat.Kvc_session_cancel, memory: from.memory, unpin: pin(from.memory)}}
	closeWhenUnused(s, s.h)
	return s
}

// NewSession begins a session. policy may be nil: keep everything; options too.
func (m *Model) NewSession(policy *Policy, options *SessionOptions) (s *Session, err error) {
	err = m.withPolicy(policy, options, func(model, policy uintptr, params flat.Kvc_session_params) error {
		var native uintptr
		if err := flat.Kvc_session_create(model, policy, params, &native); err != nil {
			return err
		}
		s = newSession(native, m, m.h)
		return nil
	})
	if sampling := options.more(); err == nil && sampling != nil {
		if err = s.SetSampling(sampling); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, err
}

// NewSessionSpec is NewSession with a policy that is only for it, by its spec.
func (m *Model) NewSessionSpec(spec string, options *SessionOptions) (*Session, error) {
	policy, err := NewPolicy(spec)
	if err != nil {
		return nil, err
	}
	defer policy.Close()
	return m.NewSession(policy, options)
}

// Restore continues a session that Save wrote with this model.
func (m *Model) Restore(path string) (s *Session, err error) {
	text, err := cstring(path)
	if err != nil {
		return nil, err
	}
	return m.restore(func(model uintptr, out *uintptr) error { return flat.Kvc_session_restore(model, text, out) })
}

// RestoreBytes continues a session that SaveBytes gave with this model.
func (m *Model) RestoreBytes(data []byte) (*Session, error) {
	return m.restore(func(model uintptr, out *uintptr) error { return flat.Kvc_session_restore_memory(model, data, out) })
}

func (m *Model) restore(call func(model uintptr, out *uintptr) error) (s *Session, err error) {
	err = with(m, m.handle(), func(model uintptr) error {
		var native uintptr
		if err := call(model, &native); err != nil {
			return err
		}
		s = newSession(native, m, m.h)
		return nil
	})
	return s, err
}

func (s *Session) handle() *handle {
	if s == nil {
		return nil
	}
	return s.h
}

// Close ends a call that runs, waits for it and frees the cache. Always nil.
func (s *Session) Close() error {
	s.handle().close()
	return nil
}

var errBusy = &Error{Status: ErrBusy, Message: "another goroutine uses this session"}

// alone runs a call that is for one goroutine at a time.
func (s *Session) alone(call func(native uintptr) error) error {
	native, err := s.handle().use()
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(s)
	defer s.h.done()
	if !s.busy.CompareAndSwap(false, true) {
		return errBusy
	}
	defer s.busy.Store(false)
	return s.h.ended(call(native))
}

// until runs a call that ctx can end: at its Done comes cancel, and forget withdraws one that came too late.
func until(ctx context.Context, cancel, forget func(), call func() error) error {
	if ctx == nil || ctx.Done() == nil {
		return call()
	}
	if cause := ctx.Err(); cause != nil {
		return &Error{ErrCancelled, cause.Error(), cause}
	}
	stop := afterFunc(ctx, cancel)
	err := call()
	if stop() {
		return err
	}
	forget()
	if cause := ctx.Err(); errors.Is(checked(err), ErrCancelled) {
		return &Error{ErrCancelled, cause.Error(), cause}
	}
	return err
}

func (s *Session) compute(ctx context.Context, call func(native uintptr) error) error {
	return s.alone(func(native uintptr) error {
		cancel := func() { _ = flat.Kvc_session_cancel(native) }
		forget := func() { _ = flat.Kvc_session_clear_cancel(native) }
		return until(ctx, cancel, forget, func() error { return call(native) })
	})
}

// Prefill appends tokens and compresses when the policy asks. ctx may end it; nil is no context. Any failure leaves
// the session as it was.
func (s *Session) Prefill(ctx context.Context, tokens []int32) error {
	return s.compute(ctx, func(native uintptr) error { return flat.Kvc_session_prefill(native, tokens) })
}

// Append is Prefill that keeps everything; Compress then applies the policy.
func (s *Session) Append(ctx context.Context, tokens []int32) error {
	return s.compute(ctx, func(native uintptr) error { return flat.Kvc_session_append(native, tokens) })
}

// Compress applies the policy to what is cached.
func (s *Session) Compress(ctx context.Context) error {
	return s.compute(ctx, flat.Kvc_session_compress)
}

// Enqueue is Prefill (compress) or Append whose tokens calls of BatchStep read on.
func (s *Session) Enqueue(tokens []int32, compress bool) error {
	var flag int32
	if compress {
		flag = 1
	}
	return s.alone(func(native uintptr) error { return flat.Kvc_session_enqueue(native, tokens, flag) })
}

// Role says who speaks in a conversation.
type Role int32

// Who speaks.
const (
	RoleSystem Role = iota
	RoleUser
	RoleAssistant
)

// Flags of Say; combine with |.
const (
	SayAnswer int32 = 1 // the steps that follow give the answer
	SayQueue  int32 = 2 // only queued, as by Enqueue
)

// Say feeds one message of a conversation between the marks of its role. The text is never read as marks.
// ErrUnsupported: the model file has none, and SetTurnMarks gave none.
func (s *Session) Say(ctx context.Context, role Role, text string, flags int32) error {
	return s.compute(ctx, func(native uintptr) error {
		return flat.Kvc_session_say(native, int32(role), []byte(text), flags)
	})
}

// SetTurnMarks gives a role marks of your own. Special tokens in them count as such.
func (s *Session) SetTurnMarks(role Role, prefix, suffix string) error {
	before, err := cstring(prefix)
	if err != nil {
		return err
	}
	after, err := cstring(suffix)
	if err != nil {
		return err
	}
	return s.alone(func(native uintptr) error {
		return flat.Kvc_session_set_turn_marks(native, int32(role), before, after)
	})
}

// ResetTurnMarks gives a role the file's marks again.
func (s *Session) ResetTurnMarks(role Role) error {
	return s.alone(func(native uintptr) error {
		return flat.Kvc_session_set_turn_marks(native, int32(role), nil, nil)
	})
}

// Trim compresses to budget slots per KV head on average, keeps that budget, and tells the bytes that became free.
func (s *Session) Trim(ctx context.Context, budget int32) (freed int64, err error) {
	err = s.compute(ctx, func(native uintptr) error { return flat.Kvc_session_trim(native, budget, &freed) })
	return freed, err
}

// What Step and BatchStep give instead of a token.
const (
	TokenNone    int32 = -1 // the answer is complete
	TokenReading int32 = -2 // the session's prompt is still being read
)

// Step generates one token, or TokenNone at the end of the answer.
func (s *Session) Step(ctx context.Context) (token int32, err error) {
	token = TokenNone
	err = s.compute(ctx, func(native uintptr) error {
		if err := flat.Kvc_session_step(native, &s.out.token); err != nil {
			return err
		}
		token = s.out.token
		return nil
	})
	return token, err
}

// StepDraft is Step called several times: so many tokens as the draft foresaw, and one more, from one pass over the
// weights; none at the end of the answer. They are those that Step gives whatever the draft says, of which 31 are
// looked at. One comes where a step does more than append: methods that evict or watch at steps, quantised caches.
func (s *Session) StepDraft(ctx context.Context, draft []int32) (tokens []int32, err error) {
	err = s.compute(ctx, func(native uintptr) error {
		room := make([]int32, min31(len(draft))+1)
		var n int32
		if err := flat.Kvc_session_step_draft(native, draft, room, &n); err != nil {
			return err
		}
		tokens = room[:n]
		return nil
	})
	return tokens, err
}

func min31(n int) int {
	if n > 31 {
		return 31
	}
	return n
}

// Accept goes on with a token of your own choice, as if Step had given it.
func (s *Session) Accept(ctx context.Context, token int32) error {
	return s.compute(ctx, func(native uintptr) error { return flat.Kvc_session_accept(native, token) })
}

// ReadText takes the text of the steps since the last call, as far as it is whole characters.
func (s *Session) ReadText() (text string, err error) {
	err = s.alone(func(native uintptr) error {
		text, err = s.readText(native)
		return err
	})
	return text, err
}

func (s *Session) readText(native uintptr) (string, error) {
	const longestCharacter = 4
	text := ""
	for {
		if err := flat.Kvc_session_read_text(native, s.out.text[:], &s.out.n); err != nil {
			return text, err
		}
		text += string(s.out.text[:s.out.n])
		if int(s.out.n) <= len(s.out.text)-longestCharacter {
			return text, nil
		}
	}
}

// SetSampling says how the following steps choose; nil is greedy.
func (s *Session) SetSampling(sampling *Sampling) error {
	return s.alone(func(native uintptr) error {
		if sampling == nil {
			return flat.Kvc_session_set_sampling(native, nil)
		}
		params := flat.NewKvc_sampling()
		defer flat.DeleteKvc_sampling(params)
		params.SetTop_k(sampling.TopK)
		params.SetTop_p(sampling.TopP)
		params.SetTemperature(sampling.Temperature)
		params.SetSeed(sampling.Seed)
		params.SetMin_p(sampling.MinP)
		params.SetRepeat_penalty(sampling.RepeatPenalty)
		params.SetRepeat_window(sampling.RepeatWindow)
		return flat.Kvc_session_set_sampling(native, params)
	})
}

// SetLogitBias adds to the logits of these tokens before a step chooses; nil is none. -Inf: never.
func (s *Session) SetLogitBias(biases map[int32]float32) error {
	tokens, values := make([]int32, 0, len(biases)), make([]float32, 0, len(biases))
	for token, bias := range biases {
		tokens, values = append(tokens, token), append(values, bias)
	}
	return s.alone(func(native uintptr) error {
		return flat.Kvc_session_set_logit_bias(native, tokens, values, int32(len(biases)))
	})
}

// SetTokenMask leaves only some tokens to choose: bit t % 32 of mask[t / 32]; an empty mask leaves all.
func (s *Session) SetTokenMask(mask []int32) error {
	return s.alone(func(native uintptr) error { return flat.Kvc_session_set_token_mask(native, mask) })
}

// Logits writes the logits that the next step chooses from into a slice of at least VocabSize, and gives that part.
func (s *Session) Logits(ctx context.Context, into []float32) (logits []float32, err error) {
	var n int32
	err = s.compute(ctx, func(native uintptr) error { return flat.Kvc_session_get_logits(native, into, &n) })
	if err != nil {
		return nil, err
	}
	if int(n) > len(into) { // without room the library only counts
		return nil, &Error{Status: ErrBufferTooSmall, Message: fmt.Sprintf("%d logits are needed", n)}
	}
	return into[:n], nil
}

// Stats counts what a session did and holds.
type Stats struct {
	PromptTokens, AnswerTokens, Compactions        int32
	CacheBytes, CacheBytesPeak, CacheBytesFull     int64 // now, at most, without compression
	WorkspaceBytes, WeightBytes                    int64
	Slots, SlotsFull                               int64 // cached entries over all heads; without compression
	PrefillSeconds, CompressSeconds, DecodeSeconds float64
	StopToken                                      int32   // that ended the answer, or -1
	PromptProgress                                 float64 // of a queued prompt; 1 = none waits
	Tokens                                         int32   // of its text: what MaxTokens bounds unless OnFull makes room
}

// Stats gives the counts.
func (s *Session) Stats() (stats Stats, err error) {
	err = s.alone(func(native uintptr) error {
		stats, err = readStats(native)
		return err
	})
	return stats, err
}

func readStats(native uintptr) (Stats, error) {
	r := flat.NewKvc_session_stats()
	defer flat.DeleteKvc_session_stats(r)
	if err := flat.Kvc_session_get_stats(native, r); err != nil {
		return Stats{}, err
	}
	return Stats{
		PromptTokens: r.GetN_prompt(), AnswerTokens: r.GetN_answer(), Compactions: r.GetN_compactions(),
		CacheBytes: r.GetCache_bytes(), CacheBytesPeak: r.GetCache_bytes_peak(), CacheBytesFull: r.GetCache_bytes_full(),
		WorkspaceBytes: r.GetWorkspace_bytes(), WeightBytes: r.GetWeight_bytes(),
		Slots: r.GetN_slots(), SlotsFull: r.GetN_slots_full(),
		PrefillSeconds: r.GetPrefill_seconds(), CompressSeconds: r.GetCompress_seconds(),
		DecodeSeconds: r.GetDecode_seconds(), StopToken: r.GetStop_token(), PromptProgress: r.GetPrompt_progress(),
		Tokens: r.GetN_tokens(),
	}, nil
}

// Progress is the share of the running Prefill, Append or Say that has been read; 1 = none runs. Any goroutine may ask.
func (s *Session) Progress() (share float64, err error) {
	err = with(s, s.handle(), func(native uintptr) error { return flat.Kvc_session_get_progress(native, &share) })
	return share, err
}

// Kept gives the token positions still cached for one head, ascending. With reducer=rest the first may be -n: an entry
// that stands for n dropped tokens. A queued prompt is not read for it.
func (s *Session) Kept(layer, kvHead int32) (positions []int32, err error) {
	err = s.alone(func(native uintptr) error {
		positions, err = fetch(0, func(b []int32, n *int32) error {
			return flat.Kvc_session_get_kept(native, layer, kvHead, b, n)
		})
		return err
	})
	return positions, err
}

// Reset makes the session empty again. Policy with Trim's budget, sampling, seed, bias, mask and marks stay; it mends
// ErrDevice.
func (s *Session) Reset() error { return s.alone(flat.Kvc_session_reset) }

// Cancel ends the running call, or else the next one that computes or queues, with ErrCancelled. Any goroutine may.
func (s *Session) Cancel() error { return with(s, s.handle(), flat.Kvc_session_cancel) }

// ClearCancel withdraws a Cancel that came too late.
func (s *Session) ClearCancel() error { return withdraw(s, s.handle(), flat.Kvc_session_clear_cancel) }

// Fork gives a second session with the same cache, which costs nothing until one of them goes on.
func (s *Session) Fork() (fork *Session, err error) {
	err = s.alone(func(native uintptr) error {
		var made uintptr
		if err := flat.Kvc_session_fork(native, &made); err != nil {
			return err
		}
		fork = newSession(made, s.model, s.h)
		return nil
	})
	return fork, err
}

// Rewind takes the newest n tokens back, while none of the older ones has been dropped since.
func (s *Session) Rewind(n int32) error {
	return s.alone(func(native uintptr) error { return flat.Kvc_session_rewind(native, n) })
}

// Save writes the session to a file, whole or not at all.
func (s *Session) Save(path string) error {
	text, err := cstring(path)
	if err != nil {
		return err
	}
	return s.alone(func(native uintptr) error { return flat.Kvc_session_save(native, text) })
}

// SaveBytes is Save to memory, for RestoreBytes.
func (s *Session) SaveBytes() (data []byte, err error) {
	err = s.alone(func(native uintptr) error {
		var n int64
		for {
			data = make([]byte, n)
			err := flat.Kvc_session_save_memory(native, data, &n)
			if err == nil && n <= int64(len(data)) {
				data = data[:n]
				return nil
			}
			if err != nil && !tooSmall(err) || n <= int64(len(data)) {
				data = nil
				return err
			}
		}
	})
	return data, err
}
