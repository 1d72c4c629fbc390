package tests

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"kvc.dev/kvc"
	"kvc.dev/kvc/internal/flat"
)

// A library is as good as the one that a program was compiled for, or better.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		loaded, compiled int32
		fits             bool
	}{{100, 100, true}, {100, 101, true}, {200, 100, false}, {100, 200, false}, {10000, 100, false}, {10203, 10203, true},
		{10204, 10203, true}, {10300, 10203, true}, {10202, 10203, false}, {10103, 10203, false}, {20000, 10203, false}} {
		if flat.Fits(c.loaded, c.compiled) != c.fits {
			t.Errorf("%d for %d", c.loaded, c.compiled)
		}
	}
}

// The constants are written twice: here is who tells when they differ.
func TestConstants(t *testing.T) {
	for status, raw := range map[kvc.Status]int{kvc.ErrInvalid: flat.KVC_E_INVALID, kvc.ErrMemory: flat.KVC_E_MEMORY,
		kvc.ErrIO: flat.KVC_E_IO, kvc.ErrBadModel: flat.KVC_E_BAD_MODEL, kvc.ErrUnsupported: flat.KVC_E_UNSUPPORTED,
		kvc.ErrNotFound: flat.KVC_E_NOT_FOUND, kvc.ErrBufferTooSmall: flat.KVC_E_BUFFER_TOO_SMALL,
		kvc.ErrContextFull: flat.KVC_E_CONTEXT_FULL, kvc.ErrCancelled: flat.KVC_E_CANCELLED,
		kvc.ErrDevice: flat.KVC_E_DEVICE, kvc.ErrBusy: flat.KVC_E_BUSY, kvc.ErrInternal: flat.KVC_E_INTERNAL} {
		if int(status) != raw {
			t.Errorf("%v is %d, not %d", status, status, raw)
		}
	}
	for _, pair := range [][2]int{{int(kvc.AddBOS), flat.KVC_ADD_BOS}, {int(kvc.ParseSpecial), flat.KVC_PARSE_SPECIAL},
		{int(kvc.Continue), flat.KVC_CONTINUE}, {int(kvc.OnFullEvict), flat.KVC_ON_FULL_EVICT},
		{int(kvc.OnFullSlide), flat.KVC_ON_FULL_SLIDE}, {int(kvc.RoleSystem), flat.KVC_ROLE_SYSTEM},
		{int(kvc.RoleUser), flat.KVC_ROLE_USER}, {int(kvc.RoleAssistant), flat.KVC_ROLE_ASSISTANT},
		{int(kvc.SayAnswer), flat.KVC_ANSWER}, {int(kvc.SayQueue), flat.KVC_QUEUE},
		{int(kvc.TokenNone), flat.KVC_TOKEN_NONE}, {int(kvc.TokenReading), flat.KVC_TOKEN_READING},
		{int(kvc.LogError), flat.KVC_LOG_ERROR}} {
		if pair[0] != pair[1] {
			t.Errorf("%d and %d", pair[0], pair[1])
		}
	}
}

// Slices may be parts of something that has pointers.
func TestSlicesOfStructs(t *testing.T) {
	type turn struct {
		name    *string
		ids     [64]int32
		logits  [2048]float32
		batch   [1]int32
		mask    [64]int32
		text    []string
		spoken  [1 << 20]byte
		answers map[string]int
	}
	name := "Ada"
	it := &turn{name: &name, text: []string{story}, answers: map[string]int{}}
	n := copy(it.ids[:], tokens(t, story))
	text, err := model.Detokenize(it.ids[:n])
	must(t, err)
	if !strings.Contains(story, text[1:]) || len(text) < 40 {
		t.Error(text)
	}
	s, other := session(t, nil, nil), session(t, nil, nil)
	must(t, s.Prefill(ctx, it.ids[:n]))
	must(t, other.Append(ctx, tokens(t, story)[:n]))
	wanted, err := other.Logits(ctx, make([]float32, 2048))
	must(t, err)
	logits, err := s.Logits(ctx, it.logits[:])
	must(t, err)
	if !reflect.DeepEqual(logits, wanted) {
		t.Error("other logits")
	}
	must(t, kvc.BatchLogits([]*kvc.Session{s}, nil, it.logits[:], it.batch[:], nil))
	must(t, kvc.BatchStep([]*kvc.Session{s}, nil, it.batch[:], nil))
	if first := answer(t, other, 1); first[0] != it.batch[0] {
		t.Error(first, it.batch)
	}
	for i := range it.mask {
		it.mask[i] = -1
	}
	must(t, s.SetTokenMask(it.mask[:]))
	_, err = s.StepDraft(ctx, it.ids[:3])
	must(t, err)
	_, err = kvc.DraftLookup(it.ids[:n], 8, 3)
	must(t, err)
	data, err := s.SaveBytes()
	must(t, err)
	again, err := model.RestoreBytes(it.spoken[:copy(it.spoken[:], data)])
	must(t, err)
	must(t, again.Close())
	if *it.name != "Ada" || it.text[0] != story || it.answers == nil {
		t.Error("the rest of it")
	}
}

func TestLibrary(t *testing.T) {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(kvc.Version()) || kvc.SchemaVersion() < 1 {
		t.Error(kvc.Version(), kvc.SchemaVersion())
	}
	devices, err := kvc.Devices()
	must(t, err)
	if len(devices) == 0 || !strings.Contains(devices[0], `"cpu"`) {
		t.Error(devices)
	}
	rate, err := kvc.MeasureDevice(0)
	must(t, err)
	if rate < 1e6 {
		t.Error(rate)
	}
	for i, name := range kvc.Methods() {
		text, err := kvc.DescribeMethod(int32(i))
		must(t, err)
		if !strings.Contains(text, `"`+name+`"`) {
			t.Error(name, text)
		}
	}
	_, err = kvc.DescribeMethod(9999)
	wants(t, kvc.ErrNotFound, err)
}

func TestModel(t *testing.T) {
	info, err := model.Info()
	must(t, err)
	if info.Layers != 6 || info.KVHeads != 4 || info.VocabSize != 2048 || info.WeightBytes < 1e7 {
		t.Error(info)
	}
	text, err := model.Describe()
	must(t, err)
	scores, err := model.HeadScores(0)
	must(t, err)
	if !strings.Contains(text, "tokenizer") || len(scores) != 24 {
		t.Error(len(text), len(scores))
	}
	ids := tokens(t, "naïve 🐙")
	back, err := model.Detokenize(ids)
	must(t, err)
	if back != "naïve 🐙" {
		t.Error(back)
	}
	bytes := ""
	for _, id := range ids {
		part, err := model.Detokenize([]int32{id})
		must(t, err)
		bytes += part // whole characters or not
	}
	if bytes != back {
		t.Errorf("%q", bytes)
	}
}

// One model was trained with BOS at the beginning, the other without; both have it.
func TestPrompt(t *testing.T) {
	begun, err := model.Prompt(story)
	must(t, err)
	if !reflect.DeepEqual(begun, tokens(t, story)) {
		t.Error(begun)
	}
	other, err := kvc.OpenModel(os.Getenv("KVC_NO_BOS"), nil)
	must(t, err)
	for i := 0; i < 2; i++ {
		begun, err = other.Prompt(story)
		must(t, err)
		bare, err := other.Tokenize(story, 0)
		must(t, err)
		if !reflect.DeepEqual(begun, bare) {
			t.Error(begun, bare)
		}
	}
	must(t, other.Close())
	_, err = other.Prompt(story)
	wants(t, kvc.ErrClosed, err)
}

func TestWaysToOpen(t *testing.T) {
	path := os.Getenv("KVC_STORIES")
	data, err := os.ReadFile(path)
	must(t, err)
	whole := filepath.Join(t.TempDir(), "in a package 🐙")
	must(t, os.WriteFile(whole, append(make([]byte, 4096), data...), 0o600))
	file, err := os.Open(whole)
	must(t, err)
	defer file.Close()
	loader, err := kvc.NewLoader()
	must(t, err)
	defer loader.Close()
	options := &kvc.ModelOptions{Device: "cpu", Threads: 1}
	var texts []string
	for _, open := range []func() (*kvc.Model, error){
		func() (*kvc.Model, error) { return kvc.OpenModel(path, options) },
		func() (*kvc.Model, error) { return kvc.OpenModelFile(file, 4096, int64(len(data)), options) },
		func() (*kvc.Model, error) { return kvc.OpenModelMemory(data, options) },
		func() (*kvc.Model, error) { return kvc.OpenModelMemory(append([]byte{0}, data...)[1:], options) },
		func() (*kvc.Model, error) { return loader.Open(ctx, path, options) },
		func() (*kvc.Model, error) { return loader.OpenFile(ctx, file, 4096, 0, options) },
	} {
		m, err := open()
		must(t, err)
		s, err := m.NewSession(nil, nil)
		must(t, err)
		runtime.GC() // nothing that the library reads may go
		texts = append(texts, all(t, s.Generate(ctx, "Once upon a time", 20)))
		m.Close()
		s.Close()
	}
	for _, text := range texts {
		if text != texts[0] || text == "" {
			t.Errorf("%q and %q", text, texts[0])
		}
	}
	_, err = kvc.OpenModel(path, &kvc.ModelOptions{MemoryLimit: 1})
	wants(t, kvc.ErrMemory, err)
	_, err = kvc.OpenModel(path, &kvc.ModelOptions{Device: "abacus"})
	wants(t, kvc.ErrInvalid, err)
}

func TestPolicy(t *testing.T) {
	p := policy(t, "cokv:budget=64")
	text, err := p.Describe()
	must(t, err)
	if !strings.HasPrefix(text, "cokv:budget=64,") {
		t.Error(text)
	}
	scores, err := model.HeadScores(0)
	must(t, err)
	must(t, p.SetHeadScores(scores))
	wants(t, kvc.ErrInvalid, p.SetTable(make([]int32, 24)))
	table := policy(t, "table")
	slots := make([]int32, 24)
	for i := range slots {
		slots[i] = int32(40 + i)
	}
	must(t, table.SetTable(slots))
	plan, err := model.Plan(table, nil, 200)
	must(t, err)
	if !reflect.DeepEqual(plan.Slots, slots) || plan.PromptTokens != 200 || plan.CacheBytesEnd >= plan.CacheBytesFull {
		t.Error(plan)
	}
	_, err = kvc.NewPolicy("cokv:budgett=3")
	var failed *kvc.Error
	if !errors.As(err, &failed) || failed.Status != kvc.ErrInvalid || !strings.Contains(failed.Message, "budget") {
		t.Error(err)
	}
}

func TestPlanOnly(t *testing.T) {
	m, err := kvc.OpenModel(os.Getenv("KVC_RECALL"), &kvc.ModelOptions{PlanOnly: true, MemoryLimit: 4 << 20})
	must(t, err)
	defer m.Close()
	expected, err := model.Plan(nil, nil, 200)
	must(t, err)
	plan, err := m.Plan(nil, nil, 200)
	must(t, err)
	// The tokenizer's patterns are machine code here, which is longer where it lies far from what it calls.
	if apart := plan.TotalBytesPeak - expected.TotalBytesPeak; apart < -1024 || apart > 1024 {
		t.Error(apart)
	}
	plan.TotalBytesPeak = expected.TotalBytesPeak
	if !reflect.DeepEqual(plan, expected) {
		t.Error(plan, expected)
	}
	_, err = m.NewSession(nil, nil)
	wants(t, kvc.ErrUnsupported, err)
}

func TestStream(t *testing.T) {
	s := session(t, policy(t, "cokv:budget=64"), &kvc.SessionOptions{OnFull: kvc.OnFullSlide})
	first := all(t, s.Generate(ctx, "Ada lives in Paris. Ada lives in", 12))
	again := session(t, policy(t, "cokv:budget=64"), nil)
	must(t, again.Prefill(ctx, tokens(t, "Ada lives in Paris. Ada lives in")))
	answer(t, again, 12)
	text, err := again.ReadText()
	must(t, err)
	if text != first || first == "" {
		t.Errorf("%q and %q", first, text)
	}
	if second := all(t, s.Generate(ctx, " And then", 4)); second == "" {
		t.Error("no second answer")
	}
	abandoned := s.Generate(ctx, " And", 100)
	abandoned.Next()
	if all(t, s.Generate(ctx, "", 3)) == "" {
		t.Error("nothing behind an answer that was left")
	}
}

// A text begins where nothing is held, whatever the statistics count.
func TestWhereATextBegins(t *testing.T) {
	s := session(t, policy(t, "full"), nil)
	must(t, s.Read(ctx, "Ada lives in Paris."))
	before, err := s.Stats()
	must(t, err)
	must(t, s.Rewind(before.PromptTokens))
	must(t, s.Read(ctx, "Ada lives in Paris."))
	after, err := s.Stats()
	must(t, err)
	if after.SlotsFull != before.SlotsFull || after.SlotsFull == 0 {
		t.Error(before, after)
	}
}

// The token that stopped an answer comes first, unless a queued prompt is behind it already.
func TestReadBehindAnAnswerThatStopped(t *testing.T) {
	info, err := model.Info()
	must(t, err)
	held := func(queue bool) int32 {
		s := reading(t)
		mask := make([]int32, (info.VocabSize+31)/32)
		mask[info.EOSToken/32] = 1 << (info.EOSToken % 32)
		must(t, s.SetTokenMask(mask))
		if text := all(t, s.Generate(ctx, "", 1)); text != "" {
			t.Errorf("%q", text)
		}
		must(t, s.SetTokenMask(nil))
		if queue {
			must(t, s.Enqueue(tokens(t, " a")[1:], true))
		}
		before, err := s.Stats()
		must(t, err)
		must(t, s.Read(ctx, " b"))
		after, err := s.Stats()
		must(t, err)
		return after.Tokens - before.Tokens
	}
	b, err := model.Tokenize(" b", kvc.Continue)
	must(t, err)
	if got, want := held(false), int32(len(b))+1; got != want {
		t.Errorf("%d tokens instead of %d", got, want)
	}
	if got, want := held(true), int32(len(b)+len(tokens(t, " a")[1:])); got != want {
		t.Errorf("%d tokens instead of %d behind a queued prompt", got, want)
	}
}

// Of an answer that ends inside a character a sign is left, as no more of it can come; a prompt behind it drops it.
func TestCharacterThatIsCutOff(t *testing.T) {
	s := reading(t)
	info, err := model.Info()
	must(t, err)
	only := func(token int32) {
		mask := make([]int32, (info.VocabSize+31)/32)
		mask[token/32] = 1 << (token % 32)
		must(t, s.SetTokenMask(mask))
	}
	part := tokens(t, "🐙")[1] // behind BOS: its first byte
	only(part)
	if text := all(t, s.Generate(ctx, "", 1)); text != "" {
		t.Errorf("%q of a part", text)
	}
	only(info.EOSToken)
	if text := all(t, s.Generate(ctx, "", 5)); text != "\ufffd" {
		t.Errorf("%q at the end", text)
	}
	must(t, s.Accept(ctx, part))
	if text := all(t, s.Generate(ctx, " And", 5)); text != "" {
		t.Errorf("%q behind a prompt", text)
	}
}

func TestSampling(t *testing.T) {
	s := reading(t)
	info, err := model.Info()
	must(t, err)
	logits, err := s.Logits(ctx, make([]float32, info.VocabSize+5))
	must(t, err)
	if len(logits) != int(info.VocabSize) {
		t.Fatal(len(logits))
	}
	for _, short := range [][]float32{make([]float32, 3), {}, nil, logits[:0]} {
		_, err = s.Logits(ctx, short)
		wants(t, kvc.ErrBufferTooSmall, err)
	}
	best := int32(0)
	for i := range logits {
		if logits[i] > logits[best] {
			best = int32(i)
		}
	}
	fork, err := s.Fork()
	must(t, err)
	defer fork.Close()
	must(t, fork.SetLogitBias(map[int32]float32{best: float32(math.Inf(-1))}))
	second := answer(t, fork, 1)[0]
	if second == best {
		t.Error("the bias forbids it")
	}
	must(t, fork.SetLogitBias(nil))
	mask := make([]int32, (info.VocabSize+31)/32)
	mask[second/32] = 1 << (second % 32)
	must(t, fork.SetTokenMask(mask))
	if got := answer(t, fork, 2); got[0] != second || got[1] != second {
		t.Error(got, second)
	}
	must(t, fork.SetTokenMask(nil))
	must(t, fork.Accept(ctx, best))
	var runs [][]int32
	for i := 0; i < 2; i++ {
		must(t, s.Reset())
		must(t, s.SetSampling(&kvc.Sampling{Temperature: 1, TopK: 50, TopP: 0.9, MinP: 0.01, RepeatPenalty: 1.2, Seed: 7}))
		must(t, s.Prefill(ctx, tokens(t, story)))
		runs = append(runs, answer(t, s, 8))
	}
	if !reflect.DeepEqual(runs[0], runs[1]) {
		t.Error(runs)
	}
	made := session(t, nil, &kvc.SessionOptions{Temperature: 1, TopK: 50, TopP: 0.9, MinP: 0.01, RepeatPenalty: 1.2,
		Seed: 7})
	must(t, made.Prefill(ctx, tokens(t, story)))
	if got := answer(t, made, 8); !reflect.DeepEqual(got, runs[0]) {
		t.Error(got, runs[0])
	}
	_, err = model.NewSession(nil, &kvc.SessionOptions{MinP: 2})
	wants(t, kvc.ErrInvalid, err)
	must(t, s.SetSampling(nil))
	wants(t, kvc.ErrInvalid, s.SetSampling(&kvc.Sampling{TopP: 2}))
}

func TestConversation(t *testing.T) {
	s := session(t, policy(t, "snapkv:budget=64,window=8"), &kvc.SessionOptions{OnFull: kvc.OnFullSlide})
	wants(t, kvc.ErrUnsupported, s.Say(ctx, kvc.RoleUser, "hello", kvc.SayAnswer))
	must(t, s.SetTurnMarks(kvc.RoleUser, "Q: ", "\n"))
	must(t, s.SetTurnMarks(kvc.RoleAssistant, "A:", "\n"))
	must(t, s.Say(ctx, kvc.RoleUser, "Where is 🐙?", kvc.SayAnswer))
	if all(t, s.Generate(ctx, "", 5)) == "" {
		t.Error("no answer")
	}
	must(t, s.ResetTurnMarks(kvc.RoleUser))
	must(t, s.ResetTurnMarks(kvc.RoleAssistant))
	wants(t, kvc.ErrUnsupported, s.Say(ctx, kvc.RoleUser, "hello", kvc.SayAnswer))
	share, err := s.Progress()
	must(t, err)
	if share != 1 {
		t.Error(share)
	}
}

func TestBranches(t *testing.T) {
	s := session(t, policy(t, "snapkv:budget=64,window=8"), nil)
	ids := tokens(t, strings.Repeat(story, 10))
	must(t, s.Append(ctx, ids))
	must(t, s.Compress(ctx))
	freed, err := s.Trim(ctx, 16)
	must(t, err)
	kept, err := s.Kept(2, 1)
	must(t, err)
	stats, err := s.Stats()
	must(t, err)
	if freed <= 0 || len(kept) == 0 || stats.Slots != 16*24 || stats.PromptTokens != int32(len(ids)) {
		t.Error(freed, kept, stats)
	}
	path := filepath.Join(t.TempDir(), "Sitzung-ß🐙")
	must(t, s.Save(path))
	data, err := s.SaveBytes()
	must(t, err)
	onDisk, err := os.ReadFile(path)
	must(t, err)
	if !reflect.DeepEqual(data, onDisk) {
		t.Error("the file and the bytes differ")
	}
	fork, err := s.Fork()
	must(t, err)
	restored, err := model.Restore(path)
	must(t, err)
	copied, err := model.RestoreBytes(data)
	must(t, err)
	wanted := answer(t, s, 5)
	for _, other := range []*kvc.Session{fork, restored, copied} {
		if got := answer(t, other, 5); !reflect.DeepEqual(got, wanted) {
			t.Error(got, wanted)
		}
		other.Close()
	}
	data[len(data)/2] ^= 1
	_, err = model.RestoreBytes(data)
	wants(t, kvc.ErrBadModel, err)
	full := reading(t)
	before := answer(t, full, 3)
	must(t, full.Rewind(3))
	must(t, full.Accept(ctx, before[0]))
	if got := answer(t, full, 2); !reflect.DeepEqual(got, before[1:]) {
		t.Error(got, before)
	}
}

func TestBatch(t *testing.T) {
	one, two, three := reading(t), reading(t), session(t, nil, nil)
	wanted := answer(t, reading(t), 3)
	must(t, three.Enqueue(tokens(t, strings.Repeat(story, 20)), true))
	sessions := []*kvc.Session{one, two, three}
	ids, errs := make([]int32, 3), make([]error, 3)
	must(t, kvc.BatchStep(sessions, &kvc.BatchOptions{PromptTokens: 16}, ids, errs))
	if ids[0] != wanted[0] || ids[1] != wanted[0] || ids[2] != kvc.TokenReading || errs[2] != nil {
		t.Error(ids, errs, wanted)
	}
	must(t, one.Cancel())
	must(t, kvc.BatchStep([]*kvc.Session{one, two}, nil, ids, errs))
	wants(t, kvc.ErrCancelled, errs[0])
	var failed *kvc.Error
	if !errors.As(errs[0], &failed) || failed.Status != kvc.ErrCancelled || failed.Message == "" {
		t.Error(errs[0])
	}
	if ids[1] != wanted[1] || errs[1] != nil {
		t.Error(ids, errs)
	}
	logits := make([]float32, 2*2048)
	must(t, kvc.BatchLogits([]*kvc.Session{one, two}, nil, logits, ids, nil))
	if logits[0] == 0 && logits[1] == 0 || ids[0] != kvc.TokenNone {
		t.Error(logits[:2], ids)
	}
	err := kvc.BatchStep([]*kvc.Session{two, one, one}, nil, make([]int32, 3), nil)
	wants(t, kvc.ErrBusy, err)
	if !strings.Contains(err.Error(), "sessions 1 and 2 of the batch are the same") {
		t.Error(err)
	}
	wants(t, kvc.ErrInvalid, kvc.BatchStep(sessions, nil, ids[:2], nil))
	wants(t, kvc.ErrInvalid, kvc.BatchStep(nil, nil, nil, nil))
	answer(t, one, 1) // nothing of what failed holds it
}

// A closed one has its error, and the others go on, their logits where they belong.
func TestClosedInABatch(t *testing.T) {
	closed, one, two := reading(t), reading(t), reading(t)
	wanted := answer(t, reading(t), 3)
	must(t, closed.Close())
	ids, errs := make([]int32, 3), make([]error, 3)
	for i, sessions := range [][]*kvc.Session{{closed, one, two}, {nil, one, two}} {
		must(t, kvc.BatchStep(sessions, nil, ids, errs))
		wants(t, kvc.ErrClosed, errs[0])
		if ids[0] != kvc.TokenNone || ids[1] != wanted[i] || ids[2] != wanted[i] || errs[1] != nil || errs[2] != nil {
			t.Error(ids, errs, wanted)
		}
	}
	must(t, kvc.BatchStep([]*kvc.Session{closed, one}, nil, ids, nil))
	must(t, kvc.BatchStep([]*kvc.Session{closed, nil}, nil, ids, errs))
	wants(t, kvc.ErrClosed, errs[1])
	other := reading(t)
	logits := make([]float32, 3*2048)
	must(t, kvc.BatchLogits([]*kvc.Session{one, closed, other}, nil, logits, ids, errs))
	wants(t, kvc.ErrClosed, errs[1])
	for row, s := range map[int]*kvc.Session{0: one, 2: other} {
		alone, err := s.Logits(ctx, make([]float32, 2048))
		must(t, err)
		if errs[row] != nil || !reflect.DeepEqual(alone, logits[row*2048:(row+1)*2048]) {
			t.Error("other logits in row", row, errs[row])
		}
	}
	wants(t, kvc.ErrBufferTooSmall, kvc.BatchLogits([]*kvc.Session{closed, one}, nil, logits[:2048], ids, nil))
	answer(t, one, 1) // nothing of what failed holds it
}

// The last that failed has the library's text, the others a sentence.
func TestTextsOfABatch(t *testing.T) {
	n := int32(len(tokens(t, story)))
	var full []*kvc.Session
	for i := 0; i < 2; i++ {
		s := session(t, nil, &kvc.SessionOptions{MaxTokens: n})
		must(t, s.Prefill(ctx, tokens(t, story)))
		answer(t, s, 1)
		full = append(full, s)
	}
	errs := make([]error, 3)
	must(t, kvc.BatchStep([]*kvc.Session{full[0], reading(t), full[1]}, nil, make([]int32, 3), errs))
	for i, text := range map[int]string{0: "kvc: the session holds max_tokens tokens (CONTEXT_FULL)",
		2: fmt.Sprintf("kvc: the session holds max_tokens=%d tokens (CONTEXT_FULL)", n)} {
		if errs[i] == nil || errs[i].Error() != text {
			t.Error(i, errs[i])
		}
	}
}

func TestLog(t *testing.T) {
	kvc.StartLog(kvc.LogInfo)
	m, err := kvc.OpenModel(os.Getenv("KVC_STORIES"), nil)
	must(t, err)
	m.Close()
	kvc.StopLog()
	level, line, ok := kvc.PollLog()
	if !ok || level != kvc.LogInfo || !strings.HasPrefix(line, "opened") {
		t.Error(level, line, ok)
	}
	for ok {
		_, _, ok = kvc.PollLog()
	}
}
