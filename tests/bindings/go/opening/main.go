// Command opening, of ../../opening_test.py, opens a model once, then eight times more. It prints the anonymous bytes
// of the eight, and those of the weights.
package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"

	"kvc.dev/kvc"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func open() *kvc.Model {
	model, err := kvc.OpenModel(os.Args[1], nil)
	must(err)
	return model
}

var anonymous = regexp.MustCompile(`(?m)^RssAnon:\s*(\d+) kB`)

func anonymousBytes() int {
	status, err := os.ReadFile("/proc/self/status")
	must(err)
	kibibytes, err := strconv.Atoi(string(anonymous.FindSubmatch(status)[1]))
	must(err)
	return kibibytes * 1024
}

func main() {
	models := []*kvc.Model{open()}
	before := anonymousBytes()
	for i := 0; i < 8; i++ {
		models = append(models, open())
	}
	grown := anonymousBytes() - before
	info, err := models[0].Info()
	must(err)
	fmt.Println(grown, info.WeightBytes)
	for _, model := range models {
		must(model.Close())
	}
}
