package flat

// Fits says whether a library has what a program was compiled for. A later minor version has all of an earlier one;
// before 1.0 they do not promise that.
func Fits(loaded, compiled int32) bool {
	if compiled < 10000 {
		return loaded/100 == compiled/100
	}
	return loaded/10000 == compiled/10000 && loaded >= compiled
}
