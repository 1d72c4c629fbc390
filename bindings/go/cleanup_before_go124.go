//go:build !go1.24

package kvc

import "runtime"

// closeWhenUnused closes what its owner forgot to close.
func closeWhenUnused[T any](owner *T, h *handle) { runtime.SetFinalizer(owner, func(*T) { h.close() }) }
