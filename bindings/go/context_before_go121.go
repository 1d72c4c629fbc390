//go:build !go1.21

package kvc

import "context"

// afterFunc calls f when ctx is done. stop says whether it was in time; when not, f has returned.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	stopped, inTime := make(chan struct{}), make(chan bool)
	go func() {
		select {
		case <-ctx.Done():
			f()
			inTime <- false
		case <-stopped:
			inTime <- true
		}
	}()
	return func() bool {
		close(stopped)
		return <-inTime
	}
}
