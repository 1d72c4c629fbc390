// Command scenario is the scenario of tests/bindings in Go: scenario MODEL SCENARIO FOLDER.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"

	"kvc.dev/kvc"
)

// step has the arguments of every kind of step.
type step struct {
	Do, As, Model, Policy, Session, Data, Name, Path, To, Text, Spec string
	Field, Prefix, Suffix, Error                                     string
	Tokens, Expect                                                   json.RawMessage
	Sessions                                                         []string
	Biases                                                           []float32
	Flags, Token, Layer, Budget, N, Steps, Role                      int32

	KVHead        int32 `json:"kv_head"`
	NPrompt       int32 `json:"n_prompt"`
	MaxTokens     int32 `json:"max_tokens"`
	OnFull        int32 `json:"on_full"`
	NGram         int32 `json:"n_gram"`
	Most          int
	TopK          int32   `json:"top_k"`
	RepeatWindow  int32   `json:"repeat_window"`
	TopP          float32 `json:"top_p"`
	MinP          float32 `json:"min_p"`
	RepeatPenalty float32 `json:"repeat_penalty"`
	Temperature   float32
	Seed          int64
}

type runner struct {
	model, folder string
	models        map[string]*kvc.Model
	policies      map[string]*kvc.Policy
	sessions      map[string]*kvc.Session
	tokens        map[string][]int32
	blobs         map[string][]byte
}

var ctx = context.Background()

func (r *runner) path(name string) string { return filepath.Join(r.folder, name) }

func (r *runner) tokensOf(s *step) (tokens []int32) {
	var name string
	if json.Unmarshal(s.Tokens, &name) == nil {
		return r.tokens[name]
	}
	must(json.Unmarshal(s.Tokens, &tokens))
	return tokens
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func keep[T any](names map[string]T, name string, value T, err error) (any, error) {
	if err == nil {
		names[name] = value
	}
	return nil, err
}

// run gives what is compared with "expect".
func (r *runner) run(s *step) (any, error) {
	model, policy, session := r.models[s.Model], r.policies[s.Policy], r.sessions[s.Session]
	switch s.Do {
	case "copy":
		data, err := os.ReadFile(r.model)
		must(err)
		return nil, os.WriteFile(r.path(s.To), data, 0o600)
	case "open":
		m, err := kvc.OpenModel(r.path(s.Path), nil)
		return keep(r.models, s.As, m, err)
	case "load":
		return r.load(s)
	case "info":
		info, err := model.Info()
		return map[string]int32{"n_layers": info.Layers, "n_kv_heads": info.KVHeads, "vocab_size": info.VocabSize,
			"max_tokens": info.MaxTokens, "bos_token": info.BOSToken}[s.Field], err
	case "tokenize":
		tokens, err := model.Tokenize(s.Text, s.Flags)
		_, _ = keep(r.tokens, s.As, tokens, err)
		return tokens, err
	case "detokenize":
		return model.Detokenize(r.tokensOf(s))
	case "policy":
		p, err := kvc.NewPolicy(s.Spec)
		return keep(r.policies, s.As, p, err)
	case "describe_policy":
		return policy.Describe()
	case "session":
		made, err := model.NewSession(policy, &kvc.SessionOptions{MaxTokens: s.MaxTokens, OnFull: kvc.OnFull(s.OnFull),
			TopK: s.TopK, TopP: s.TopP, Temperature: s.Temperature, Seed: s.Seed})
		return keep(r.sessions, s.As, made, err)
	case "restore":
		made, err := model.Restore(r.path(s.Path))
		return keep(r.sessions, s.As, made, err)
	case "restore_memory":
		made, err := model.RestoreBytes(r.blobs[s.Data])
		return keep(r.sessions, s.As, made, err)
	case "plan":
		plan, err := model.Plan(policy, nil, s.NPrompt)
		sum := int32(0)
		for _, slots := range plan.Slots {
			sum += slots
		}
		return sum, err
	case "draft_lookup":
		return kvc.DraftLookup(r.tokensOf(s), s.Most, s.NGram)
	case "threads":
		return r.threads(s, model, policy)
	case "batch_step":
		sessions := make([]*kvc.Session, len(s.Sessions))
		for i, name := range s.Sessions {
			sessions[i] = r.sessions[name]
		}
		tokens, errs := make([]int32, len(sessions)), make([]error, len(sessions))
		err := kvc.BatchStep(sessions, nil, tokens, errs)
		for _, own := range errs {
			must(own)
		}
		return tokens, err
	case "close":
		return nil, r.close(s.Name)
	}
	return r.onSession(s, session)
}

func (r *runner) onSession(s *step, session *kvc.Session) (any, error) {
	switch s.Do {
	case "prefill":
		return nil, session.Prefill(ctx, r.tokensOf(s))
	case "append":
		return nil, session.Append(ctx, r.tokensOf(s))
	case "enqueue":
		return nil, session.Enqueue(r.tokensOf(s), true)
	case "compress":
		return nil, session.Compress(ctx)
	case "reset":
		return nil, session.Reset()
	case "cancel":
		return nil, session.Cancel()
	case "clear_cancel":
		return nil, session.ClearCancel()
	case "trim":
		_, err := session.Trim(ctx, s.Budget)
		return nil, err
	case "rewind":
		return nil, session.Rewind(s.N)
	case "accept":
		return nil, session.Accept(ctx, s.Token)
	case "step":
		return steps(session, s.N)
	case "step_draft":
		return session.StepDraft(ctx, r.tokensOf(s))
	case "read_text":
		return session.ReadText()
	case "kept":
		return session.Kept(s.Layer, s.KVHead)
	case "best":
		logits, err := session.Logits(ctx, make([]float32, 2048))
		best := 0
		for i, value := range logits {
			if value > logits[best] {
				best = i
			}
		}
		return best, err
	case "stats":
		stats, err := session.Stats()
		return map[string]int64{"n_prompt": int64(stats.PromptTokens), "n_answer": int64(stats.AnswerTokens),
			"n_slots": stats.Slots}[s.Field], err
	case "sampling":
		return nil, session.SetSampling(&kvc.Sampling{TopK: s.TopK, TopP: s.TopP, Temperature: s.Temperature, Seed: s.Seed,
			MinP: s.MinP, RepeatPenalty: s.RepeatPenalty, RepeatWindow: s.RepeatWindow})
	case "bias":
		biases := map[int32]float32{}
		for i, token := range r.tokensOf(s) {
			biases[token] = s.Biases[i]
		}
		return nil, session.SetLogitBias(biases)
	case "mask":
		var words []int32
		for _, token := range r.tokensOf(s) {
			if words == nil {
				words = make([]int32, 2048/32)
			}
			words[token/32] |= 1 << (token % 32)
		}
		return nil, session.SetTokenMask(words)
	case "turn_marks":
		return nil, session.SetTurnMarks(kvc.Role(s.Role), s.Prefix, s.Suffix)
	case "say":
		return nil, session.Say(ctx, kvc.Role(s.Role), s.Text, s.Flags)
	case "fork":
		fork, err := session.Fork()
		return keep(r.sessions, s.As, fork, err)
	case "save":
		return nil, session.Save(r.path(s.Path))
	case "save_memory":
		data, err := session.SaveBytes()
		return keep(r.blobs, s.As, data, err)
	}
	return nil, fmt.Errorf("no such step")
}

func (r *runner) load(s *step) (any, error) {
	loader, err := kvc.NewLoader()
	must(err)
	defer loader.Close()
	m, err := loader.Open(ctx, r.path(s.Path), nil)
	if share, progressErr := loader.Progress(); share != 1 || progressErr != nil {
		return nil, fmt.Errorf("progress %v, %v", share, progressErr)
	}
	return keep(r.models, s.As, m, err)
}

func (r *runner) threads(s *step, model *kvc.Model, policy *kvc.Policy) (any, error) {
	answers := make([][]int32, s.N)
	errs := make([]error, s.N)
	var all sync.WaitGroup
	for i := range answers {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			session, err := model.NewSession(policy, nil)
			if err == nil {
				defer session.Close()
				err = session.Prefill(ctx, r.tokensOf(s))
			}
			if err == nil {
				answers[i], err = steps(session, s.Steps)
			}
			errs[i] = err
		}(i)
	}
	all.Wait()
	for i := range answers {
		if errs[i] != nil || !reflect.DeepEqual(answers[i], answers[0]) {
			return nil, fmt.Errorf("thread %d: %v, %v", i, answers[i], errs[i])
		}
	}
	return answers[0], nil
}

func steps(session *kvc.Session, n int32) (tokens []int32, err error) {
	for i := int32(0); i < n; i++ {
		token, err := session.Step(ctx)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, token)
		if token == kvc.TokenNone {
			break
		}
	}
	return tokens, nil
}

func (r *runner) close(name string) error {
	if m := r.models[name]; m != nil {
		return m.Close()
	}
	if p := r.policies[name]; p != nil {
		return p.Close()
	}
	return r.sessions[name].Close()
}

// check says what is wrong with a step, or "".
func (r *runner) check(s *step) string {
	result, err := r.run(s)
	if s.Error != "" || err != nil {
		var failed *kvc.Error
		if !errors.As(err, &failed) || failed.Status.Error() != s.Error {
			return fmt.Sprintf("error %v", err)
		}
		return ""
	}
	if s.Expect == nil {
		return ""
	}
	got, err := json.Marshal(result)
	must(err)
	var a, b any
	must(json.Unmarshal(got, &a))
	must(json.Unmarshal(s.Expect, &b))
	if list, ok := b.([]any); ok && len(list) == 0 && a == nil {
		return ""
	}
	if !reflect.DeepEqual(a, b) {
		return "gave " + string(got)
	}
	return ""
}

func main() {
	r := &runner{os.Args[1], os.Args[3], map[string]*kvc.Model{}, map[string]*kvc.Policy{}, map[string]*kvc.Session{},
		map[string][]int32{}, map[string][]byte{}}
	text, err := os.ReadFile(os.Args[2])
	must(err)
	var all []json.RawMessage
	must(json.Unmarshal(text, &all))
	for i, raw := range all {
		var s step
		must(json.Unmarshal(raw, &s))
		if wrong := r.check(&s); wrong != "" {
			fmt.Printf("step %d, %.200s: %s\n", i+1, raw, wrong)
			os.Exit(1)
		}
	}
	fmt.Printf("%d steps passed\n", len(all))
}
