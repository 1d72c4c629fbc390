// Command ask_document reads a document once, keeps a compressed cache of it, and answers any number of questions from
// that: ask_document MODEL.kvc POLICY DOCUMENT QUESTION...
//
//	ask_document recall.kvc cokv-document:budget=24 text.txt "The code of Zachary is"
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"kvc.dev/kvc"
)

func main() {
	if len(os.Args) < 5 {
		log.Fatal("usage: ask_document MODEL.kvc POLICY DOCUMENT QUESTION...")
	}
	if err := ask(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		log.Fatal(err)
	}
}

func ask(ctx context.Context, path, spec, file string, questions []string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	model, err := kvc.OpenModel(path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	document, err := model.NewSessionSpec(spec, nil)
	if err != nil {
		return err
	}
	defer document.Close()
	if err := document.Read(ctx, string(text)); err != nil {
		return err
	}
	stats, err := document.Stats()
	if err != nil {
		return err
	}
	fmt.Printf("%d tokens in %d KiB instead of %d\n", stats.PromptTokens, stats.CacheBytes>>10, stats.CacheBytesFull>>10)
	for _, question := range questions {
		if err := answer(ctx, model, document, question); err != nil {
			return err
		}
	}
	return nil
}

func answer(ctx context.Context, model *kvc.Model, document *kvc.Session, question string) error {
	// A fork shares the cache of the document, and what is asked of one the others do not see. The question is appended:
	// as the prompt of Generate it would be compressed, and the document once more with it.
	tokens, err := model.Tokenize(" "+question, kvc.Continue)
	if err != nil {
		return err
	}
	fork, err := document.Fork()
	if err != nil {
		return err
	}
	defer fork.Close()
	if err := fork.Append(ctx, tokens); err != nil {
		return err
	}
	fmt.Print(question)
	stream := fork.Generate(ctx, "", 6)
	for stream.Next() && !strings.Contains(stream.Text(), ".") {
		fmt.Print(stream.Text())
	}
	fmt.Println()
	return stream.Err()
}
