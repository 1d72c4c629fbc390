package kvc

import (
	"context"

	"kvc.dev/kvc/internal/flat"
)

// Stream is an answer on its way: Next, then Text, until Next says no; then Err.
type Stream struct {
	session *Session
	ctx     context.Context
	prompt  string
	left    int
	text    string
	err     error
}

// Generate reads a prompt, as Read does, and answers with at most maxTokens tokens, as far as the Stream is asked for
// them. Prompt "" lets the session speak on, or answer what Say said. ctx may end it.
func (s *Session) Generate(ctx context.Context, prompt string, maxTokens int) *Stream {
	return &Stream{session: s, ctx: ctx, prompt: prompt, left: maxTokens}
}

// Next gets the next piece of text; false at the end and after an error.
func (s *Stream) Next() bool {
	s.text = ""
	if s.err == nil && s.prompt != "" {
		s.err = s.session.Read(s.ctx, s.prompt)
		s.prompt = ""
	}
	for s.err == nil && s.left > 0 && s.text == "" {
		s.left--
		s.err = s.session.compute(s.ctx, s.step)
	}
	return s.text != ""
}

func (s *Stream) step(native uintptr) error {
	out := s.session.out
	if err := flat.Kvc_session_step(native, &out.token); err != nil {
		return err
	}
	if out.token == TokenNone {
		s.left = 0
	}
	var err error
	s.text, err = s.session.readText(native) // behind the end too: a character that was cut off
	return err
}

// Text is the piece that Next got: whole characters.
func (s *Stream) Text() string { return s.text }

// Err is what ended the stream before its end, or nil. errors.Is knows the error of a context too.
func (s *Stream) Err() error { return s.err }

// Read feeds a text behind what the session has, and compresses as Prefill does. The first begins with BOS where the
// model wants one; one behind an answer that stopped begins with the token that stopped it, so that the model sees its
// own answer closed. It needs the model open.
func (s *Session) Read(ctx context.Context, text string) error {
	return s.compute(ctx, func(native uintptr) error {
		stats, err := readStats(native)
		if err != nil {
			return err
		}
		flags := Continue
		if stats.SlotsFull == 0 && stats.PromptProgress == 1 { // nothing held and nothing queued
			if flags, err = s.model.begins(); err != nil {
				return err
			}
		}
		tokens, err := s.model.Tokenize(text, flags)
		if err != nil {
			return err
		}
		if stats.StopToken >= 0 && stats.PromptProgress == 1 { // behind a queued prompt it is not the last token
			tokens = append([]int32{stats.StopToken}, tokens...)
		}
		return flat.Kvc_session_prefill(native, tokens)
	})
}
