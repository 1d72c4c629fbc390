package kvc

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"kvc.dev/kvc/internal/flat"
)

// ModelOptions of OpenModel; zero values are defaults.
type ModelOptions struct {
	Device      string // "auto" ("") or a name of Devices
	Threads     int32  // of the CPU, the caller's included; 0 = all fast ones that the process may use
	MemoryLimit int64  // bytes; 0 = none. Past it: ErrMemory
	Trusted     bool   // the bytes of the weights are not verified: opens at once what was verified before
	PlanOnly    bool   // the weights are neither read nor counted: for Plan, texts and Describe; sessions: ErrUnsupported
}

// flat gives what the library takes; release must be called after the call.
func (o *ModelOptions) flat() (device *byte, params flat.Kvc_model_params, release func(), err error) {
	if o == nil {
		return nil, nil, func() {}, nil
	}
	if o.Device != "" {
		if device, err = cstring(o.Device); err != nil {
			return nil, nil, nil, err
		}
	}
	params = flat.NewKvc_model_params()
	params.SetN_threads(o.Threads)
	params.SetMemory_limit(o.MemoryLimit)
	if o.Trusted {
		params.SetTrusted(1)
	}
	if o.PlanOnly {
		params.SetPlan_only(1)
	}
	return device, params, func() { flat.DeleteKvc_model_params(params) }, nil
}

// Model is weights and a tokenizer. It does not change; sessions keep it alive.
type Model struct {
	h         *handle
	vocab     int32 // VocabSize of its Info
	beginning int32 // flags of begins + 1, when known
}

func (o *ModelOptions) open(call func(device *byte, params flat.Kvc_model_params, out *uintptr) error) (*Model, error) {
	if err := fits(); err != nil {
		return nil, err
	}
	device, params, release, err := o.flat()
	if err != nil {
		return nil, err
	}
	defer release()
	var native uintptr
	if err := call(device, params, &native); err != nil {
		return nil, checked(err)
	}
	m := &Model{h: &handle{native: native, free: flat.Kvc_model_close}}
	closeWhenUnused(m, m.h)
	info, err := m.Info()
	if err != nil {
		m.Close()
		return nil, err
	}
	m.vocab = info.VocabSize
	return m, nil
}

// OpenModel opens a model file. options may be nil. ErrIO: it cannot be read; ErrBadModel: it is damaged.
func OpenModel(path string, options *ModelOptions) (*Model, error) {
	text, err := cstring(path)
	if err != nil {
		return nil, err
	}
	return options.open(func(device *byte, params flat.Kvc_model_params, out *uintptr) error {
		return flat.Kvc_model_open(text, device, params, out)
	})
}

// OpenModelFile opens a part of an open file: size bytes from offset, 0 = to its end. It is mapped where offset is a
// multiple of 64, else read into memory. The file may be closed behind it.
func OpenModelFile(file *os.File, offset, size int64, options *ModelOptions) (*Model, error) {
	defer runtime.KeepAlive(file)
	return options.open(func(device *byte, params flat.Kvc_model_params, out *uintptr) error {
		return flat.Kvc_model_open_fd(int32(file.Fd()), offset, size, device, params, out)
	})
}

// OpenModelMemory opens a model file that is in memory. data must not change until the model and its sessions are
// closed. It is used where it is when it begins at a multiple of 64 bytes, as mapped memory does, else copied once.
func OpenModelMemory(data []byte, options *ModelOptions) (*Model, error) {
	const alignment = 64
	if len(data) > 0 && uintptr(unsafe.Pointer(&data[0]))%alignment != 0 {
		whole := make([]byte, len(data)+alignment)
		begin := (alignment - int(uintptr(unsafe.Pointer(&whole[0]))%alignment)) % alignment
		data = whole[begin : begin+copy(whole[begin:], data)]
	}
	unpin := pin(data)
	m, err := options.open(func(device *byte, params flat.Kvc_model_params, out *uintptr) error {
		return flat.Kvc_model_open_memory(data, device, params, out)
	})
	if err != nil {
		unpin()
		return nil, err
	}
	m.h.memory, m.h.unpin = data, unpin
	return m, nil
}

func (m *Model) handle() *handle {
	if m == nil {
		return nil
	}
	return m.h
}

// Close frees the model when its last session is closed too. Always nil.
func (m *Model) Close() error {
	m.handle().close()
	return nil
}

// ModelInfo is the shape of a model. Tokens that it has not are -1.
type ModelInfo struct {
	Layers, Heads, KVHeads, HeadDim, HiddenSize, FFNSize, VocabSize int32
	MaxTokens                                                       int32 // trained context
	BOSToken, EOSToken                                              int32
	HeadScoreTables                                                 int32
	WeightBytes, Parameters                                         int64
}

// Info gives the shape of the model.
func (m *Model) Info() (info ModelInfo, err error) {
	err = with(m, m.handle(), func(native uintptr) error {
		i := flat.NewKvc_model_info()
		defer flat.DeleteKvc_model_info(i)
		if err := flat.Kvc_model_get_info(native, i); err != nil {
			return err
		}
		info = ModelInfo{i.GetN_layers(), i.GetN_heads(), i.GetN_kv_heads(), i.GetHead_dim(), i.GetHidden_size(),
			i.GetFfn_size(), i.GetVocab_size(), i.GetMax_tokens(), i.GetBos_token(), i.GetEos_token(),
			i.GetN_head_scores(), i.GetWeight_bytes(), i.GetN_parameters()}
		return nil
	})
	return info, err
}

// Describe is all that the file says about itself, as JSON.
func (m *Model) Describe() (text string, err error) {
	err = with(m, m.handle(), func(native uintptr) error {
		text, err = fetchText(func(b []byte, n *int32) error { return flat.Kvc_model_describe(native, b, n) })
		return err
	})
	return text, err
}

// HeadScores is table index of the file: [layers, KV heads], per query head for estimator headkv-r2.
func (m *Model) HeadScores(index int32) (scores []float32, err error) {
	err = with(m, m.handle(), func(native uintptr) error {
		scores, err = fetch(0, func(b []float32, n *int32) error {
			return flat.Kvc_model_get_head_scores(native, index, b, n)
		})
		return err
	})
	return scores, err
}

// How Tokenize reads text; combine with |.
const (
	AddBOS       int32 = 1 // put the token before it that begins a text
	ParseSpecial int32 = 2 // special tokens in the text are special; only for text you trust
	Continue     int32 = 4 // it goes on behind a text that was tokenized before
)

// Tokenize gives the ids of a text of UTF-8.
func (m *Model) Tokenize(text string, flags int32) (tokens []int32, err error) {
	err = with(m, m.handle(), func(native uintptr) error {
		tokens, err = fetch(len(text)+16, func(b []int32, n *int32) error {
			return flat.Kvc_tokenize(native, []byte(text), flags, b, n)
		})
		return err
	})
	return tokens, err
}

// begins gives the flags for a text that begins a session: not every model wants BOS.
func (m *Model) begins() (flags int32, err error) {
	if m == nil {
		return 0, ErrClosed
	}
	if known := atomic.LoadInt32(&m.beginning); known != 0 {
		return known - 1, nil
	}
	text, err := m.Describe()
	if err != nil {
		return 0, err
	}
	about := struct {
		Tokenizer struct {
			AddBOS bool `json:"add_bos"`
		}
	}{}
	about.Tokenizer.AddBOS = true
	if err := json.Unmarshal([]byte(text), &about); err != nil {
		return 0, err
	}
	if about.Tokenizer.AddBOS {
		flags = AddBOS
	}
	atomic.StoreInt32(&m.beginning, flags+1)
	return flags, nil
}

// Prompt gives the ids of a text that begins a session, with BOS before it where the model wants one.
func (m *Model) Prompt(text string) (tokens []int32, err error) {
	flags, err := m.begins()
	if err != nil {
		return nil, err
	}
	return m.Tokenize(text, flags)
}

// Detokenize gives the text of ids: the bytes as the tokens have them, which need not be whole characters. For grammar
// engines those of a token behind another: the first of a text may lose the space that it begins with.
func (m *Model) Detokenize(tokens []int32) (text string, err error) {
	err = with(m, m.handle(), func(native uintptr) error {
		text, err = fetchText(func(b []byte, n *int32) error { return flat.Kvc_detokenize(native, tokens, b, n) })
		return err
	})
	return text, err
}

// Plan is what a session would take, in bytes.
type Plan struct {
	PromptTokens                int32
	WeightBytes, WorkspaceBytes int64
	CacheBytesPeak              int64   // during prefill
	CacheBytesPrompt            int64   // after prefill
	CacheBytesEnd               int64   // at MaxTokens
	CacheBytesFull              int64   // at MaxTokens without compression
	TotalBytesPeak              int64   // weights, workspace and cache at the worst moment
	Slots                       []int32 // of every KV head after the prompt, [layers, KV heads]
}

// Plan tells what a session for a prompt of so many tokens would take, without taking it.
func (m *Model) Plan(policy *Policy, options *SessionOptions, promptTokens int32) (plan Plan, err error) {
	err = m.withPolicy(policy, options, func(model, policy uintptr, params flat.Kvc_session_params) error {
		p := flat.NewKvc_plan()
		defer flat.DeleteKvc_plan(p)
		slots, err := fetch(0, func(b []int32, n *int32) error {
			return flat.Kvc_session_plan(model, policy, params, promptTokens, p, b, n)
		})
		plan = Plan{p.GetN_prompt(), p.GetWeight_bytes(), p.GetWorkspace_bytes(), p.GetCache_bytes_peak(),
			p.GetCache_bytes_prompt(), p.GetCache_bytes_end(), p.GetCache_bytes_full(), p.GetTotal_bytes_peak(), slots}
		return err
	})
	if err != nil {
		plan = Plan{}
	}
	return plan, err
}

// Loader opens models while other goroutines ask how far it is.
type Loader struct{ h *handle }

// NewLoader makes a loader, for any number of models one after the other.
func NewLoader() (*Loader, error) {
	if err := fits(); err != nil {
		return nil, err
	}
	var native uintptr
	if err := flat.Kvc_loader_create(&native); err != nil {
		return nil, checked(err)
	}
	l := &Loader{&handle{native: native, free: flat.Kvc_loader_close, cancel: flat.Kvc_loader_cancel}}
	closeWhenUnused(l, l.h)
	return l, nil
}

func (l *Loader) handle() *handle {
	if l == nil {
		return nil
	}
	return l.h
}

// Close stops an open that runs. Models that were opened stay open. Always nil.
func (l *Loader) Close() error {
	l.handle().close()
	return nil
}

func (l *Loader) open(ctx context.Context, options *ModelOptions,
	call func(native uintptr, device *byte, params flat.Kvc_model_params, out *uintptr) error) (model *Model, err error) {
	err = with(l, l.handle(), func(native uintptr) error {
		cancel := func() { _ = flat.Kvc_loader_cancel(native) }
		forget := func() { _ = flat.Kvc_loader_clear_cancel(native) }
		return until(ctx, cancel, forget, func() error {
			model, err = options.open(func(device *byte, params flat.Kvc_model_params, out *uintptr) error {
				return call(native, device, params, out)
			})
			return err
		})
	})
	return model, err
}

// Open is OpenModel, ended by ctx or Cancel with ErrCancelled.
func (l *Loader) Open(ctx context.Context, path string, options *ModelOptions) (*Model, error) {
	text, err := cstring(path)
	if err != nil {
		return nil, err
	}
	return l.open(ctx, options, func(native uintptr, device *byte, params flat.Kvc_model_params, out *uintptr) error {
		return flat.Kvc_loader_open(native, text, device, params, out)
	})
}

// OpenFile is OpenModelFile, ended by ctx or Cancel with ErrCancelled.
func (l *Loader) OpenFile(ctx context.Context, file *os.File, offset, size int64,
	options *ModelOptions) (*Model, error) {
	defer runtime.KeepAlive(file)
	return l.open(ctx, options, func(native uintptr, device *byte, params flat.Kvc_model_params, out *uintptr) error {
		return flat.Kvc_loader_open_fd(native, int32(file.Fd()), offset, size, device, params, out)
	})
}

// Progress is the share of the open that runs, 0 to 1; 1 = none runs.
func (l *Loader) Progress() (share float64, err error) {
	err = with(l, l.handle(), func(native uintptr) error { return flat.Kvc_loader_get_progress(native, &share) })
	return share, err
}

// Cancel ends the running open, or else the next one, with ErrCancelled.
func (l *Loader) Cancel() error { return with(l, l.handle(), flat.Kvc_loader_cancel) }

// ClearCancel withdraws a Cancel that came too late.
func (l *Loader) ClearCancel() error { return withdraw(l, l.handle(), flat.Kvc_loader_clear_cancel) }
