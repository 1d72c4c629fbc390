//go:build go1.23

package tests

import (
	"context"
	"errors"
	"testing"
)

func TestAll(t *testing.T) {
	wanted := all(t, reading(t).Generate(ctx, "", 6))
	got := ""
	reading(t).Generate(ctx, "", 6).All()(func(text string, err error) bool {
		must(t, err)
		got += text
		return true
	})
	if got != wanted || got == "" {
		t.Errorf("%q, not %q", got, wanted)
	}
	n := 0
	stream := reading(t).Generate(ctx, "", 6)
	stream.All()(func(string, error) bool { n++; return false })
	if n != 1 || !stream.Next() {
		t.Error("it does not stop, or does not go on", n)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	var last error
	reading(t).Generate(done, "", 6).All()(func(_ string, err error) bool { last = err; return true })
	if !errors.Is(last, context.Canceled) {
		t.Error(last)
	}
}
