// Package pinned asks the checks of cgo about memory.
package pinned

// static void look(void* held) { (void)held; }
import "C"

import "unsafe"

// Is says whether C may hold a pointer to this byte, which is Go's: whether the checks of cgo let a call pass in whose
// memory it stands.
func Is(at *byte) (is bool) {
	defer func() { is = recover() == nil }()
	held := &struct{ at *byte }{at}
	C.look(unsafe.Pointer(held))
	return
}
