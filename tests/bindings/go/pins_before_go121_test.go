//go:build !go1.21

package tests

const canPin = false
