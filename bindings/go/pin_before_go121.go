//go:build !go1.21

package kvc

// pin does nothing: these versions of Go have nothing for it, and move nothing but stacks, so that it is enough for
// a handle to refer to memory.
func pin(memory []byte) (release func()) { return func() {} }
