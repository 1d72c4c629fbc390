//go:build go1.23

package kvc

import "iter"

// All is the stream as a sequence, an error last where there is one.
func (s *Stream) All() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for s.Next() {
			if !yield(s.Text(), nil) {
				return
			}
		}
		if s.err != nil {
			yield("", s.err)
		}
	}
}
