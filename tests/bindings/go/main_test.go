// Package tests holds the Go facade to what it promises. KVC_RECALL and KVC_STORIES name model files.
package tests

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"kvc.dev/kvc"
)

const story = "Once upon a time there was a little girl who lived in a small house. She had a dog and a red ball. "

var (
	ctx   = context.Background()
	model *kvc.Model // recall; open during all tests
)

func TestMain(m *testing.M) {
	var err error
	if model, err = kvc.OpenModel(os.Getenv("KVC_RECALL"), nil); err != nil {
		panic(err)
	}
	if ending := os.Getenv("KVC_TEST_ENDING"); ending != "" {
		endWithOpenSessions(ending)
		return
	}
	code := m.Run()
	model.Close()
	os.Exit(code)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t *testing.T, wanted, err error) {
	t.Helper()
	if !errors.Is(err, wanted) {
		t.Fatalf("%v, not %v", err, wanted)
	}
}

func policy(t *testing.T, spec string) *kvc.Policy {
	t.Helper()
	p, err := kvc.NewPolicy(spec)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func session(t *testing.T, p *kvc.Policy, options *kvc.SessionOptions) *kvc.Session {
	t.Helper()
	s, err := model.NewSession(p, options)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func tokens(t *testing.T, text string) []int32 {
	t.Helper()
	ids, err := model.Tokenize(text, kvc.AddBOS)
	must(t, err)
	return ids
}

// reading is a session that has read the story.
func reading(t *testing.T) *kvc.Session {
	t.Helper()
	s := session(t, nil, nil)
	must(t, s.Prefill(ctx, tokens(t, story)))
	return s
}

func all(t *testing.T, stream *kvc.Stream) string {
	t.Helper()
	var text strings.Builder
	for stream.Next() {
		text.WriteString(stream.Text())
	}
	must(t, stream.Err())
	return text.String()
}

func answer(t *testing.T, s *kvc.Session, n int) []int32 {
	t.Helper()
	ids := make([]int32, n)
	for i := range ids {
		var err error
		ids[i], err = s.Step(ctx)
		must(t, err)
	}
	return ids
}
