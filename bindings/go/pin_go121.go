//go:build go1.21

package kvc

import "runtime"

// pin lets the library read memory after the call that it got it in, until release.
func pin(memory []byte) (release func()) {
	if len(memory) == 0 {
		return func() {}
	}
	pinner := new(runtime.Pinner)
	func() {
		// Go 1.21 panics at memory that is not its own, such as a mapped file; later ones let it be.
		defer func() { _ = recover() }()
		pinner.Pin(&memory[0])
	}()
	return pinner.Unpin
}
