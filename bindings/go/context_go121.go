//go:build go1.21

package kvc

import "context"

// afterFunc calls f when ctx is done. stop says whether it was in time; when not, f has returned.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	ended := make(chan struct{})
	in := context.AfterFunc(ctx, func() {
		defer close(ended)
		f()
	})
	return func() bool {
		if in() {
			return true
		}
		<-ended
		return false
	}
}
