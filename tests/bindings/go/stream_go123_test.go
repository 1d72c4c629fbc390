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
	for text, err := range reading(t).Generate(ctx, "", 6).All() {
		must(t, err)
		got += text
	}
	if got != wanted || got == "" {
		t.Errorf("%q, not %q", got, wanted)
	}
	n := 0
	stream := reading(t).Generate(ctx, "", 6)
	for range stream.All() {
		n++
		break
	}
	if n != 1 || !stream.Next() {
		t.Error("it does not stop, or does not go on", n)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	var last error
	for _, last = range reading(t).Generate(done, "", 6).All() {
	}
	if !errors.Is(last, context.Canceled) {
		t.Error(last)
	}
}
