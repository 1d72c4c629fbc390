package kvc

import (
	"fmt"
	"runtime"
	"sync"

	"kvc.dev/kvc/internal/flat"
)

// BatchOptions of BatchStep; zero values are defaults.
type BatchOptions struct {
	PromptTokens int32 // of queued prompts that a call reads before its step; 0 = 256
}

// BatchStep is a step of each session, all of one model, in one pass over the weights. tokens and errs get one entry a
// session, TokenReading while a queued prompt is read; errs may be nil. A session that cannot go on has an *Error
// there, or ErrClosed, and does not stop the others; err is for a batch that could not be.
func BatchStep(sessions []*Session, options *BatchOptions, tokens []int32, errs []error) error {
	return batch(sessions, options, nil, tokens, errs,
		func(r *rows, params flat.Kvc_batch_params) error {
			return flat.Kvc_batch_step(r.natives, params, r.tokens, r.statuses, r.out.text[:], &r.out.n)
		})
}

// BatchLogits gives logits instead of tokens, one row of VocabSize a session, to choose from and Accept. Only where
// the entries are TokenNone and nil the row holds logits.
func BatchLogits(sessions []*Session, options *BatchOptions, logits []float32, tokens []int32, errs []error) error {
	return batch(sessions, options, logits, tokens, errs,
		func(r *rows, params flat.Kvc_batch_params) error {
			return flat.Kvc_batch_logits(r.natives, params, logits, r.tokens, r.statuses, r.out.text[:], &r.out.n)
		})
}

// rows are the arguments of a batch, to be used again by the next: those of the sessions that are open.
type rows struct {
	natives          []uintptr
	tokens, statuses []int32
	places           []int    // of each among the sessions
	out              *outputs // apart, as in a session
}

var rowPool = sync.Pool{New: func() any { return &rows{out: &outputs{}} }}

// open uses the sessions that are not closed, and tells each of the others. release must be called after the call.
func (r *rows) open(sessions []*Session, tokens []int32, errs []error) (release func(), err error) {
	r.natives, r.tokens, r.statuses, r.places = r.natives[:0], r.tokens[:0], r.statuses[:0], r.places[:0]
	release = func() {
		for _, place := range r.places {
			s := sessions[place]
			s.busy.Store(false)
			s.h.done()
			runtime.KeepAlive(s)
		}
	}
	for i, s := range sessions {
		tokens[i] = TokenNone
		native, closed := s.handle().use()
		if errs != nil {
			errs[i] = closed
		}
		if closed != nil {
			continue
		}
		if !s.busy.CompareAndSwap(false, true) {
			s.h.done()
			for _, place := range r.places {
				if sessions[place] == s {
					err := fmt.Sprintf("sessions %d and %d of the batch are the same", place, i)
					return release, &Error{Status: ErrBusy, Message: err}
				}
			}
			return release, errBusy
		}
		r.natives, r.tokens, r.statuses = append(r.natives, native), append(r.tokens, 0), append(r.statuses, 0)
		r.places = append(r.places, i)
	}
	return release, nil
}

func batch(sessions []*Session, options *BatchOptions, logits []float32, tokens []int32, errs []error,
	call func(r *rows, params flat.Kvc_batch_params) error) error {
	if len(tokens) < len(sessions) || errs != nil && len(errs) < len(sessions) {
		return invalid("%d sessions, but room for %d tokens and %d errors", len(sessions), len(tokens), len(errs))
	}
	r := rowPool.Get().(*rows)
	defer rowPool.Put(r)
	release, err := r.open(sessions, tokens, errs)
	defer release()
	if err != nil || len(r.places) == 0 && len(sessions) > 0 {
		return err
	}
	size, missing := 0, len(r.places) < len(sessions)
	if missing && logits != nil {
		size = int(sessions[r.places[0]].model.vocab)
		if len(logits) < size*len(sessions) {
			return &Error{Status: ErrBufferTooSmall,
				Message: fmt.Sprintf("logits: %d numbers, room for %d", size*len(sessions), len(logits))}
		}
	}
	var params flat.Kvc_batch_params
	if options != nil {
		params = flat.NewKvc_batch_params()
		defer flat.DeleteKvc_batch_params(params)
		params.SetPrompt_tokens(options.PromptTokens)
	}
	if err := call(r, params); err != nil {
		return checked(err)
	}
	text := string(r.out.text[:r.out.n]) // the library's, of the last that failed
	for i := len(r.places) - 1; i >= 0; i-- {
		place := r.places[i]
		tokens[place] = r.tokens[i]
		if size > 0 && place != i { // the rows lie one behind the other, the last in front of its place
			copy(logits[place*size:(place+1)*size], logits[i*size:(i+1)*size])
		}
		if r.statuses[i] == 0 {
			continue
		}
		if text == "" {
			text = flat.Kvc_flat_row_error(r.statuses[i])
		}
		if errs != nil {
			errs[place] = sessions[place].h.ended(&Error{Status: Status(r.statuses[i]), Message: text})
		}
		text = ""
	}
	return nil
}
