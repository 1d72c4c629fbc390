// Command chat is a conversation that may go on for ever: chat MODEL.kvc [POLICY [TOKENS]], one turn a line. Ctrl-C
// stops the answer.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"

	"kvc.dev/kvc"
)

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: chat MODEL.kvc [POLICY [TOKENS]]")
	}
	spec, maxTokens := "full", 512
	if len(os.Args) > 2 {
		spec = os.Args[2]
	}
	if len(os.Args) > 3 {
		maxTokens, _ = strconv.Atoi(os.Args[3])
	}
	if err := chat(os.Args[1], spec, maxTokens); err != nil {
		log.Fatal(err)
	}
}

func chat(path, spec string, maxTokens int) error {
	model, err := kvc.OpenModel(path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	// Past the trained context old entries leave, and what the policy keeps of every turn stays within its budget.
	session, err := model.NewSessionSpec(spec, &kvc.SessionOptions{OnFull: kvc.OnFullSlide})
	if err != nil {
		return err
	}
	defer session.Close()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24) // what is pasted may be long
	for ; lines.Scan(); fmt.Println() {
		if err := answer(session, lines.Text(), maxTokens); err != nil && !errors.Is(err, kvc.ErrCancelled) {
			return err
		}
	}
	return lines.Err()
}

func answer(session *kvc.Session, line string, maxTokens int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := session.Say(ctx, kvc.RoleUser, line, kvc.SayAnswer)
	if errors.Is(err, kvc.ErrUnsupported) {
		// The model was not trained on conversations and has no marks for turns: it goes on with what the user writes.
		if err = session.SetTurnMarks(kvc.RoleUser, "", ""); err == nil {
			err = session.Say(ctx, kvc.RoleUser, line, kvc.SayAnswer)
		}
	}
	if err != nil {
		return err
	}
	stream := session.Generate(ctx, "", maxTokens)
	for stream.Next() {
		fmt.Print(stream.Text())
	}
	return stream.Err()
}
