// Policy text: grammar, budgets, composition and every refusal with its sentence.
#include <gtest/gtest.h>

#include <clocale>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "lib/compress/method_table.h"
#include "lib/compress/policy.h"

namespace kvc {
namespace {

Policy Parsed(const std::string& spec) {
  Result<Policy> policy = ParsePolicy(spec.c_str());
  EXPECT_TRUE(policy.ok()) << spec << ": " << policy.status().message();
  return policy.ok() ? std::move(policy.value()) : Policy();
}

std::string Refusal(const std::string& spec, Code code = Code::kInvalid) {
  const Result<Policy> policy = ParsePolicy(spec.c_str());
  EXPECT_FALSE(policy.ok()) << spec;
  if (policy.ok()) return "";
  EXPECT_EQ(policy.status().code(), code) << spec;
  return policy.status().message();
}

TEST(Grammar, BudgetsAndNumbers) {
  EXPECT_EQ(Parsed("snapkv:budget=64").budget, 64);
  EXPECT_EQ(Parsed("  snapkv : budget = 64 ,\twindow = 8 ").Int(OptionId::kWindow), 8);
  EXPECT_EQ(Parsed("snapkv:budget_ratio=0.05").budget, 0.05);
  EXPECT_EQ(Parsed("snapkv:budget_ratio=5%").budget, 0.05);
  EXPECT_EQ(Parsed("snapkv:budget_ratio=7%").budget, 0.07);
  EXPECT_EQ(Parsed("snapkv:budget_ratio=1").budget, 1);
  EXPECT_EQ(Parsed("snapkv:budget_bytes=64MiB").budget, 64.0 * 1048576);
  EXPECT_EQ(Parsed("snapkv:budget_bytes=1.5GiB").budget, 1.5 * 1073741824);
  EXPECT_EQ(Parsed("snapkv:budget_bytes=100000").budget, 100000);
  EXPECT_EQ(Parsed("snapkv:budget_bytes=2 MB").budget, 2e6);
  // As --memory-limit has them: letters alone are binary, kB and KB decimal.
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, double>>{{"512M", 512 * 1048576.0},
                                                                               {"100K", 102400},
                                                                               {"100KB", 1e5},
                                                                               {"100kB", 1e5},
                                                                               {"50KiB", 51200},
                                                                               {"2G", 2147483648.0},
                                                                               {"1e6", 1e6},
                                                                               {"4096B", 4096}})
    EXPECT_EQ(Parsed("snapkv:budget_bytes=" + text).budget, bytes) << text;
  EXPECT_EQ(Parsed("snapkv:budget_bytes=9007199254740992").budget, 9007199254740992.0);
  EXPECT_EQ(Parsed("nacl:budget=64,seed=9007199254740992").Real(OptionId::kSeed), 9007199254740992.0);
  EXPECT_EQ(Parsed("h2o:budget=64,h2o_recent=auto").Int(OptionId::kH2oRecent), -1);
  EXPECT_EQ(Parsed("h2o:budget=64,h2o_recent=0").Int(OptionId::kH2oRecent), 0);
  EXPECT_EQ(Parsed("ada-snapkv:budget=64,ada_floor=1e-1").Real(OptionId::kAdaFloor), 0.1);
  EXPECT_EQ(Parsed("cokv:budget=64,scores=niah multi/v2").scores_name, "niah multi/v2");
}

TEST(Grammar, IgnoresTheLocale) {
  std::setlocale(LC_NUMERIC, "de_DE.UTF-8");  // a decimal comma, where the system has that locale
  const Policy policy = Parsed("snapkv:budget_ratio=0.05");
  EXPECT_EQ(policy.budget, 0.05);
  EXPECT_NE(DescribePolicy(policy).find("budget_ratio=0.05,"), std::string::npos);
  std::setlocale(LC_NUMERIC, "C");
}

TEST(Grammar, FourBitsWantGroupsOfWholeBytes) {
  for (const char* spec : {"full:kv=int4,quant_group=5", "cokv:budget=64,kv=mixed,quant_group=7"})
    EXPECT_NE(Refusal(spec, Code::kInvalid).find("is odd: int4 has two codes a byte"), std::string::npos);
  Parsed("full:kv=int8,quant_group=5");
  Parsed("cokv:budget=64,kv=mixed,low_bits=8,quant_group=7");
}

TEST(Grammar, WhatReadsAPartHasNoBudget) {
  EXPECT_EQ(Refusal("quest:budget=64", Code::kInvalid),
            "quest keeps everything, so it has no budget; read=N says how many entries a step reads");
  EXPECT_EQ(Refusal("full:budget=64", Code::kInvalid), "full keeps everything, so it has no budget");
}

// What is published and not here is refused by what it does, with a policy that can be had.
TEST(Grammar, MethodsKnownElsewhere) {
  const std::string think = Refusal("think:budget=64", Code::kNotFound),
                    expected =
                        "there is no method \"think\": ThinK drops channels of keys, no entries; nearest is "
                        "full:kv=int4,key_axis=channel. There";
  EXPECT_EQ(think.substr(0, expected.size()), expected);
  for (const char* name : {"ThinKPress", "Q-Filters", "observed_attention", "ChunkKV"}) {
    ASSERT_NE(FindElsewhere(name), nullptr) << name;
    EXPECT_NE(Refusal(name, Code::kNotFound).find(FindElsewhere(name)->what), std::string::npos);
  }
  for (const char* name : {"", "press", "Press", "-", "quest", "snapkv"})
    EXPECT_EQ(FindElsewhere(name), nullptr) << name;
  std::ifstream file(KVC_SOURCE_DIR "/docs/methods.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (const KnownElsewhere& known : Elsewhere()) {
    EXPECT_EQ(FindRow(Methods(), known.name), nullptr) << known.name << " is here";
    std::string policy = known.nearest;
    EXPECT_NE(page.find("`" + policy + "`"), std::string::npos) << policy << " is not in docs/methods.md";
    if (policy.find("full") != 0)
      policy += (policy.find(':') == std::string::npos ? ":" : ",") + std::string("budget=64");
    EXPECT_TRUE(ParsePolicy(policy.c_str()).ok()) << policy;
  }
}

// Other spellings are no second names: the message says what the method is called here.
TEST(Grammar, MethodsWithOtherNames) {
  for (const auto& [theirs, ours] :
       std::vector<std::pair<std::string, std::string>>{{"SnapKVPress", "snapkv"},
                                                        {"KVzipPress", "kvzip"},
                                                        {"TOVAPress", "tova"},
                                                        {"LagKVPress", "lagkv"},
                                                        {"KnormPress", "knorm"},
                                                        {"KeyDiffPress", "keydiff"},
                                                        {"AdaKVPress", "ada-snapkv"},
                                                        {"DuoAttentionPress", "duo-attention"},
                                                        {"StreamingLLM", "streaming"},
                                                        {"streaming-llm", "streaming"},
                                                        {"ada-kv", "ada-snapkv"},
                                                        {"adakv", "ada-snapkv"},
                                                        {"headkv", "headkv-r2"},
                                                        {"HeadKV-R", "headkv-r2"},
                                                        {"ada_snapkv", "ada-snapkv"},
                                                        {"Expected Attention", "expected-attention"},
                                                        {"SnapKV", "snapkv"},
                                                        {"snapkv_w8", "snapkv-w8"}}) {
    EXPECT_NE(
        Refusal(theirs + ":budget=64", Code::kNotFound).find(": it is called " + ours + " here. There are "),
        std::string::npos)
        << theirs;
  }
  std::ifstream file(KVC_SOURCE_DIR "/docs/methods.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (const KnownAs& known : OtherNames()) {
    EXPECT_EQ(PlainName(known.theirs), known.theirs);
    EXPECT_EQ(FindRow(Methods(), known.theirs), nullptr) << known.theirs;
    EXPECT_EQ(FindElsewhere(known.theirs), nullptr) << known.theirs;
    EXPECT_NE(FindRow(Methods(), known.ours), nullptr) << known.ours;
    EXPECT_NE(page.find(std::string("`") + known.theirs + "`"), std::string::npos) << known.theirs;
  }
}

// What begins like a name comes before what is spelt nearly like it; what is like none gets no suggestion.
TEST(Grammar, NearestNames) {
  EXPECT_NE(Refusal("pyramid", Code::kNotFound).find("; nearest is pyramidkv. "), std::string::npos);
  EXPECT_NE(Refusal("spindle", Code::kNotFound).find("; nearest is spindlekv. "), std::string::npos);
  EXPECT_NE(Refusal("kvzip2", Code::kNotFound).find("; nearest is kvzip. "), std::string::npos);
  EXPECT_NE(Refusal("scissorhand", Code::kNotFound).find("; nearest is scissorhands. "), std::string::npos);
  const std::string none = Refusal("rocketkv", Code::kNotFound);
  EXPECT_EQ(none.substr(0, 60), "there is no method \"rocketkv\". There are full, quest, stream");
  EXPECT_NE(none.find("; kvc methods explains them"), std::string::npos) << none;
  EXPECT_EQ(Refusal("snapkv:budget=64,colour=8").substr(0, 43),
            "snapkv has no option \"colour\". It has budge");
  EXPECT_EQ(Refusal("snapkv:budget=64,scorer=best").substr(0, 40),
            "there is no scorer \"best\". There are pos");
}

TEST(Grammar, Refusals) {
  EXPECT_EQ(Refusal(""), "the policy is empty; write a method and its options, like snapkv:budget=128");
  EXPECT_EQ(ParsePolicy(nullptr).status().code(), Code::kInvalid);
  EXPECT_EQ(Refusal(":budget=5"), Refusal(" "));
  EXPECT_EQ(Refusal(std::string(4097, 'a')), "the policy is longer than 4096 characters");
  EXPECT_EQ(Refusal("snapvk:budget=5", Code::kNotFound).substr(0, 49),
            "there is no method \"snapvk\"; nearest is snapkv. T");
  EXPECT_EQ(Refusal("snapkv\n\xff:budget=5", Code::kNotFound).substr(0, 28), "there is no method \"snapkv??");
  EXPECT_EQ(
      Refusal("snapkv"),
      "snapkv needs a budget: budget=N slots per KV head, budget_ratio=R of the prompt, or budget_bytes=B");
  EXPECT_EQ(Refusal("snapkv:"), "\"\" is not key=value; a policy is written method:key=value,key=value");
  EXPECT_EQ(Refusal("snapkv:budget=64,"),
            "\"\" is not key=value; a policy is written method:key=value,key=value");
  EXPECT_EQ(Refusal("snapkv:budget"),
            "\"budget\" is not key=value; a policy is written method:key=value,key=value");
  EXPECT_EQ(Refusal("snapkv:=3"), "\"=3\" is not key=value; a policy is written method:key=value,key=value");
  EXPECT_EQ(Refusal("snapkv:budget=64,window=8,window=8"), "window is given twice");
  EXPECT_EQ(Refusal("snapkv:budget=64,budget=64"), "budget is given twice");
  EXPECT_EQ(Refusal("snapkv:budget=64,budget_ratio=0.1"),
            "budget and budget_ratio are both given; a policy has one budget");
}

TEST(Grammar, KeysThatDoNotExist) {
  EXPECT_EQ(Refusal("snapkv:budget=64,windw=8").substr(0, 54),
            "snapkv has no option \"windw\"; nearest is window. It ha");
  // What it has with decode=reobserve, or with codes.
  EXPECT_NE(Refusal("snapkv:budget=64,slak=4").find("nearest is slack."), std::string::npos);
  EXPECT_NE(Refusal("full:quant_grup=32").find("nearest is quant_group."), std::string::npos);
  EXPECT_NE(
      Refusal("snapkv:budget=64,windw=8")
          .find("kv, compress_per_chunk; with other values of kv or decode also kv_values, quant_group, "
                "key_axis, residual, bits_levels, high_bits, low_bits, median_mode, slack"),
      std::string::npos);
  for (const auto& [symbol, word] :
       std::vector<std::pair<std::string, std::string>>{{"w", "window"},
                                                        {"kappa", "kernel"},
                                                        {"bits", "kv"},
                                                        {"C", "budget"},
                                                        {"Window", "window"},
                                                        {"group_size", "quant_group"}}) {
    EXPECT_NE(Refusal("snapkv:budget=64," + symbol + "=8").find("nearest is " + word + "."),
              std::string::npos)
        << symbol;
  }
  EXPECT_NE(Refusal("ahakv:budget=64,kappa_v=8").find("nearest is value_kernel."), std::string::npos);
  EXPECT_EQ(Refusal("snapkv:budget=64,beta=8"),
            "snapkv has no option beta with its allocator uniform, scorer window and reducer evict; it has "
            "window, kernel, pool, avg_edge, gqa_agg, "
            "pool_before_group, pool_rows_first, kv, compress_per_chunk");
  EXPECT_EQ(Refusal("full:window=8"), "full keeps everything, so it has no option window");
  EXPECT_EQ(Refusal("snapkv:budget=64,quant_group=32"), "quant_group needs kv=int8, int4 or mixed");
  EXPECT_EQ(Refusal("snapkv:budget=64,kv=int8,high_bits=8"), "high_bits needs kv=mixed");
  EXPECT_EQ(Refusal("snapkv:budget=64,slack=8"), "slack needs decode=reobserve");
  Parsed("snapkv:quant_group=32,budget=64,kv=int8");  // in any order
  EXPECT_EQ(Refusal("snapkv:budget=64,scores=x"),
            "snapkv uses no head scores, so scores = \"x\" has no meaning");
  Parsed("snapkv:budget=64,scores=x,kv=mixed");
}

TEST(Grammar, BitsLevels) {
  const Policy policy = Parsed("cokv-mixed:budget=64,bits_levels=16:0.1+8:0.4+4:0.5");
  ASSERT_EQ(policy.levels.size(), 3u);
  EXPECT_EQ(policy.levels[1].bits, 8);
  EXPECT_EQ(policy.levels[1].share, 0.4);
  EXPECT_TRUE(Parsed("cokv-mixed:bits_levels=none,high_bits=16").levels.empty());
  Parsed("snapkv:budget=64,kv=mixed,bits_levels=8:0.3333333333+4:0.6666666667");  // 1e-9 is allowed
  EXPECT_EQ(Refusal("cokv-mixed:bits_levels=8:0.5+4:0.5,high_bits=8"),
            "high_bits and bits_levels both say which head has how many bits: give one of them");
  EXPECT_EQ(Refusal("cokv-mixed:median_mode=exact_half,bits_levels=8:0.5+4:0.5"),
            "median_mode and bits_levels both say which head has how many bits: give one of them");
  EXPECT_EQ(Refusal("snapkv:budget=64,bits_levels=8:1"), "bits_levels needs kv=mixed");
  EXPECT_EQ(Refusal("cokv-mixed:bits_levels=8:0.5+4:0.4"),
            "the shares of bits_levels sum to 0.9 and not to 1");
  EXPECT_EQ(Refusal("cokv-mixed:bits_levels=8:0.5+2:0.5"),
            "bits_levels has a level of 2 bits: 16, 8 and 4 are allowed");
  EXPECT_EQ(Refusal("cokv-mixed:bits_levels=4:0.5+8:0.5"),
            "bits_levels go down with the score: 8 bits cannot follow 4");
  EXPECT_EQ(Refusal("cokv-mixed:bits_levels=8:1+4:0"),
            "the share of 4 bits in bits_levels is 0: above 0 and up to 1");
  EXPECT_EQ(Refusal("cokv-mixed:bits_levels=8"), "bits_levels = \"8\" is not a list like 16:0.1+8:0.4+4:0.5");
  for (const char* text :
       {"", "+", ":", "8:", ":1", "8:1+", "+8:1", "8:nan", "8:1e999", "99999999999:1", "8:1:1"})
    Refusal(std::string("cokv-mixed:bits_levels=") + text);
}

// Entries of 16 bits have no scale, and nothing to put off.
TEST(Grammar, MixedOfSixteenBitsHasNoOptionsOfCodes) {
  for (const char* bits : {"bits_levels=16:1", "low_bits=16,high_bits=16"}) {
    const std::string spec = std::string("cokv-mixed:budget=64,") + bits;
    EXPECT_FALSE(Parsed(spec).quantises()) << bits;
    EXPECT_EQ(DescribePolicy(Parsed(spec)).find("quant_group"), std::string::npos) << bits;
    for (const std::string option : {"quant_group=16", "key_axis=channel", "key_axis=token", "residual=4"}) {
      const std::string key = option.substr(0, option.find('='));
      EXPECT_EQ(Refusal(spec + "," + option),
                key + " is about entries of 8 or 4 bits, and kv=mixed gives every head 16");
      EXPECT_EQ(Refusal("cokv-mixed:" + option + "," + bits), Refusal(spec + "," + option)) << "in any order";
    }
  }
  for (const char* bits : {"bits_levels=16:0.5+8:0.5", "high_bits=16", "high_bits=16,low_bits=8"}) {
    const Policy policy =
        Parsed(std::string("cokv-mixed:quant_group=16,key_axis=channel,residual=4,") + bits);
    EXPECT_TRUE(policy.quantises()) << bits;
  }
}

TEST(Composition, ValuesMayHaveCodesOfTheirOwn) {
  for (const char* spec : {"full:kv=int8,kv_values=int4", "full:kv_values=int8,kv=int4",
                           "snapkv:budget=64,kv=int8,kv_values=int4,key_axis=channel"}) {
    EXPECT_EQ(Parsed(spec).codes_a_byte(), 2) << spec;
    const std::string text = DescribePolicy(Parsed(spec));
    EXPECT_EQ(DescribePolicy(Parsed(text)), text);
  }
  EXPECT_EQ(Parsed("full:kv=int8,kv_values=int8").codes_a_byte(), 1);
  EXPECT_EQ(Parsed("full:kv=int8,kv_values=int2").codes_a_byte(), 4);
  EXPECT_EQ(Refusal("full:kv=int4,kv_values=int2,quant_group=6"),
            "quant_group = 6 is no multiple of 4: int2 has four codes a byte, and a group whole bytes");
  EXPECT_EQ(Refusal("full:kv_values=int4"), "kv_values needs kv=int8 or int4, the type of the keys");
  EXPECT_EQ(Refusal("cokv-mixed:budget=64,kv_values=int4"),
            "kv=mixed gives every head its bits, of keys and values alike: kv_values has no meaning");
  EXPECT_EQ(Refusal("full:kv=int8,kv_values=int4,quant_group=5"),
            "quant_group = 5 is odd: int4 has two codes a byte, and a group whole bytes");
}

TEST(Composition, KeyChannelsNeedPagesThatStay) {
  for (const char* spec : {"snapkv:budget=64,kv=int8,key_axis=channel", "full:kv=int4,key_axis=channel",
                           "cokv-mixed:key_axis=channel,budget=99"})
    Parsed(spec);
  EXPECT_EQ(Refusal("snapkv:budget=64,key_axis=channel"), "key_axis needs kv=int8, int4 or mixed");
  EXPECT_EQ(
      Refusal("h2o:budget=64,kv=int8,key_axis=channel"),
      "key_axis=channel codes the keys of many tokens together, and decode=step drops tokens one by one: "
      "use decode=grow");
  EXPECT_NE(Refusal("snapkv:budget=64,kv=int8,key_axis=channel,decode=reobserve").find("decode=reobserve"),
            std::string::npos);
  EXPECT_EQ(Refusal("snapkv:budget=64,kv=int4,key_axis=channel,pos_mode=incache"),
            "key_axis=channel codes the keys of many tokens together, and pos_mode=incache turns them one by "
            "one: use pos_mode=original");
  EXPECT_EQ(Refusal("spindlekv:budget=64,kv=int8,key_axis=channel"),
            "reducer codebook stores directions and magnitudes, and kv=int8 only its newest entries: use "
            "f32, f16 or bf16");
}

TEST(Policy, ReadsPartsOfWholeChunksAtTheirOriginalPositions) {
  EXPECT_EQ(Parsed("kvzip:budget=64,reread=own,reread_part=512").Int(OptionId::kRereadPart), 512);
  EXPECT_EQ(Refusal("kvzip:budget=64,reread_part=100"), "reread_part = 100 is no multiple of 256");
  EXPECT_EQ(Refusal("reconstruct:budget=64,reread_part=256,pos_mode=incache"),
            "reread_part moves queries behind their part, and pos_mode=incache counts entries of a head: "
            "use pos_mode=original or reread_part=0");
  Parsed("reconstruct:budget=64,reread=own,pos_mode=incache");
  EXPECT_NE(Refusal("kvzip:budget=64,reread_share=0").find("reread_share"), std::string::npos);
  EXPECT_NE(Refusal("snapkv:budget=64,reread=own").find("reread"), std::string::npos);
}

TEST(Grammar, ValuesOutOfRange) {
  EXPECT_EQ(Refusal("snapkv:budget=0"), "budget = \"0\" is not allowed: slots per KV head, 1 .. 16777216");
  EXPECT_EQ(Refusal("snapkv:budget=16777217"),
            "budget = \"16777217\" is not allowed: slots per KV head, 1 .. 16777216");
  for (const char* value : {"-5", "1.5", "", "99999999999999999999", "5x", "auto", "0x10", "1e3", "+5"})
    Refusal(std::string("snapkv:budget=") + value);
  for (const char* value : {"0", "1.01", "-0.1", "nan", "inf", "101%", "", "%", "1e-400"})
    Refusal(std::string("snapkv:budget_ratio=") + value);
  for (const char* value : {"0", "-1", "1e30", "64X", "64 kb", "MiB", "M", "", "1e20KiB", "0.5"})
    Refusal(std::string("snapkv:budget_bytes=") + value);
  EXPECT_EQ(Refusal("snapkv:budget_ratio=2"),
            "budget_ratio = \"2\" is not allowed: the kept share of the prompt, above 0 and up to 1, or a "
            "percentage like 5%");
  EXPECT_EQ(Refusal("snapkv:budget_bytes=64X"),
            "budget_bytes = \"64X\" is not allowed: bytes of the whole cache, 1 .. 2^53, such as 65536, 1e6, "
            "100KB, 50KiB, 512M");
  EXPECT_EQ(Refusal("snapkv:budget=64,window=0"), "window = 0 is out of range: 1 .. 4096");
  EXPECT_EQ(Refusal("cam:budget=64,seed=9007199254740993"),
            "seed = 9007199254740993 is out of range: 0 .. 9007199254740992");
  EXPECT_EQ(Refusal("snapkv:budget=64,window=abc"), "window = \"abc\" is not a whole number: 1 .. 4096");
  EXPECT_EQ(Refusal("h2o:budget=64,h2o_recent=-1"), "h2o_recent = -1 is out of range: 0 .. 1048576 or auto");
  EXPECT_EQ(Refusal("snapkv:budget=64,pool=mix"), "pool = \"mix\" is not one of max, avg");
  EXPECT_EQ(Refusal("ada-snapkv:budget=64,ada_floor=1.5"), "ada_floor = 1.5 is out of range: 0 .. 1");
  EXPECT_EQ(Refusal("ada-snapkv:budget=64,ada_floor=nan"), "ada_floor = \"nan\" is not a number: 0 .. 1");
  EXPECT_EQ(Refusal("tova:budget=64,protect_last=2"), "protect_last = 2 is out of range: 0 or 1");
  EXPECT_EQ(Refusal("tova:budget=64,protect_last=yes"), "protect_last = \"yes\" is not a flag: 0 or 1");
  EXPECT_EQ(Refusal("snapkv:budget=64,kernel=4"),
            "kernel = 4 is even: a kernel has a middle, 1, 3, 5 .. 255");
  EXPECT_EQ(Refusal("snapkv:budget=64,kv=mixed,high_bits=5"), "high_bits = 5 is not one of 4, 8, 16");
  EXPECT_EQ(Refusal("snapkv:budget=64,kv=mixed,high_bits=4,low_bits=8"),
            "high_bits = 4 is below low_bits = 8");
  EXPECT_EQ(Refusal("cokv:budget=64,alpha=0"), "alpha = 0 is out of range: 1 .. 1048576 or auto");
  EXPECT_EQ(Refusal("ada-snapkv:budget=64,ada_locked=3"), "ada_locked needs ada_mode=safeguard");
  EXPECT_EQ(Refusal("snapkv:budget=64,pool_rows_first=1,pool_before_group=1"),
            "pool_rows_first and pool_before_group are two orders of the same steps: set one of them");
  EXPECT_EQ(Refusal("cokv:budget=64,scores="),
            "scores = \"\" is not the name of a table: 1 .. 128 printable characters");
  Refusal("cokv:budget=64,scores=" + std::string(129, 'x'));
  Refusal("cokv:budget=64,scores=a\nb");
}

TEST(Budget, ProtectedPartMustFit) {
  Parsed("snapkv:budget=32");  // window only
  EXPECT_EQ(Refusal("snapkv:budget=31"),
            "budget = 31 is smaller than what snapkv always keeps: the first 0 and the newest 32 tokens");
  Parsed("snapkv:budget=16,window=16");
  EXPECT_EQ(Refusal("streaming:budget=4"),
            "budget = 4 is smaller than what streaming always keeps: the first 4 and the newest 1 tokens");
  Parsed("streaming:budget=5");
  Parsed("nacl:budget=36");
  Refusal("nacl:budget=35");
  Refusal("ahakv:budget=31");
  Refusal("weightedkv:budget=4");
  for (const char* spec : {"weightedkv:budget=5", "weightedkv:budget=9", "h2o:budget=1", "tova:budget=1",
                           "ahakv:budget=32", "weightedkv:budget=16"})
    Parsed(spec);
  Refusal("h2o:budget=8,h2o_recent=9");
}

// Bytes are shared by weights, and what is rounded then are bytes (methods.md 4.4 b).
TEST(Budget, BytesAreSharedWithoutTheSlotsRounding) {
  EXPECT_EQ(Refusal("cokv:budget_bytes=64MiB,cokv_rounding=reference"),
            "cokv_rounding=reference rounds slots, and with budget_bytes allocator cokv shares bytes: use "
            "budget or "
            "budget_ratio");
  EXPECT_EQ(Refusal("headkv-r2:budget_bytes=64MiB,headkv_rounding=reference"),
            "headkv_rounding=reference rounds slots, and with budget_bytes allocator headkv shares bytes: "
            "use budget "
            "or budget_ratio");
  Refusal("snapkv:budget_bytes=64MiB,allocator=cokv,cokv_rounding=reference");
  for (const char* spec :
       {"cokv:budget=64,cokv_rounding=reference", "cokv:budget_ratio=0.1,cokv_rounding=reference",
        "cokv:budget_bytes=64MiB,cokv_rounding=exact", "headkv-r2:budget_ratio=0.1,headkv_rounding=reference",
        "pyramidkv:budget_bytes=64MiB,pyramid_rounding=reference"})  // shares slots
    Parsed(spec);
}

TEST(Budget, Scissorhands) {  // methods.md 2.5
  EXPECT_EQ(Refusal("scissorhands:budget=21"),
            "scissorhands needs a budget of at least recent + 1 + drop: recent = 10, drop = half of the "
            "budget, which is 10, but the budget is 21");
  Parsed("scissorhands:budget=22");
  EXPECT_EQ(Refusal("scissorhands:budget=21,recent=auto"), Refusal("scissorhands:budget=21"));
  EXPECT_EQ(Refusal("scissorhands:budget=15,recent=auto"), Refusal("scissorhands:budget=15"));
  Parsed("scissorhands:budget=22,recent=auto");
  Parsed("scissorhands:budget=16,recent=8");  // the golden files' smallest
  EXPECT_EQ(Refusal("scissorhands:budget=15,recent=9"),
            "scissorhands needs a budget of at least recent + drop: recent = 9, drop = half of the budget, "
            "which is 7, but the budget is 15");
  Parsed("scissorhands:budget=20,recent=3,drop=4");
  EXPECT_EQ(Refusal("scissorhands:budget=14,drop=4"),
            "scissorhands needs a budget of at least recent + 1 + drop: recent = 10, drop = 4, but the "
            "budget is 14");
  // A share of the prompt becomes slots later; the same rule then speaks.
  const Policy ratio = Parsed("scissorhands:budget_ratio=0.1");
  EXPECT_FALSE(ValidateSlots(ratio, 21).ok());
  EXPECT_TRUE(ValidateSlots(ratio, 22).ok());
  EXPECT_FALSE(ValidateSlots(ratio, 0).ok());
}

TEST(Budget, Optional) {
  const Policy mixed = Parsed("cokv-mixed");
  EXPECT_TRUE(mixed.keeps_all());
  EXPECT_EQ(mixed.Int(OptionId::kWindow), 8);
  EXPECT_FALSE(Parsed("cokv-mixed:budget=64").keeps_all());
  Refusal("cokv-mixed:scorer=h2o");
  EXPECT_EQ(Refusal("cokv-mixed:window=8"), "cokv-mixed keeps everything, so it has no option window");
  EXPECT_EQ(Parsed("table").budget_kind, BudgetKind::kNone);
  EXPECT_STREQ(Parsed("h2o:allocator=table").allocator->name, "table");
  Refusal("table:allocator=uniform");
  EXPECT_EQ(Refusal("full:budget=64"), "full keeps everything, so it has no budget");
  EXPECT_EQ(Refusal("full:decode=step"), "full keeps everything, so it has no decode");
  Parsed("full:kv=int8,residual=auto");
}

TEST(Composition, NamesOfParts) {
  const Policy policy = Parsed(
      "snapkv:budget=64,allocator=ada+pyramid,scorer=h2o,decode=step,pos_mode=incache,beta=5,h2o_recent=4");
  EXPECT_STREQ(policy.allocator->name, "ada+pyramid");
  EXPECT_EQ(policy.positions, PositionMode::kInCache);
  EXPECT_EQ(Refusal("snapkv:budget=64,scorer=h20"),
            "there is no scorer \"h20\"; nearest is h2o. There are position, h2o, h2o_count, last_row, "
            "window, window_sg_value, proxy_random, "
            "persistence, avg_accum, window_qhead, window_ramp, window_accum, reconstruct, key_norm, "
            "key_difference, lag, expected");
  EXPECT_EQ(Refusal("snapkv:budget=64,allocator=ada_pyramid").substr(0, 62),
            "there is no allocator \"ada_pyramid\"; nearest is ada+pyramid. T");
  EXPECT_EQ(Refusal("snapkv:budget=64,reducer=x").substr(0, 25), "there is no reducer \"x\". ");
  EXPECT_EQ(Refusal("snapkv:budget=64,decode=once"), "decode = \"once\" is not one of grow, step, reobserve");
  EXPECT_EQ(Refusal("snapkv:budget=64,pos_mode=x"), "pos_mode = \"x\" is not one of original, incache");
}

// The table of methods.md 4.2: every scorer with every allocator. '-' = refused, 'k' = only with
// tova_scope=kvhead.
TEST(Composition, ScorersAndAllocators) {
  const std::vector<std::string> allocators = {"uniform", "pyramid",     "pyramid_infer", "spindle_ratio",
                                               "ada",     "ada+pyramid", "headkv",        "cokv",
                                               "table",   "duo",         "global"};
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"position", "++++--++++-"},     {"h2o", "+++++++++++"},         {"h2o_count", "+++++++++++"},
      {"last_row", "++++kkkkkk-"},     {"window", "++++++++++-"},      {"window_sg_value", "++++++++++-"},
      {"proxy_random", "++++--++++-"}, {"persistence", "++++--++++-"}, {"avg_accum", "+++++++++++"},
      {"window_qhead", "++++-------"}, {"window_ramp", "++++-------"}, {"window_accum", "++++++++++-"},
      {"reconstruct", "+++++++++++"},  {"key_norm", "++++++++++-"},    {"key_difference", "++++++++++-"},
      {"lag", "++++++++++-"},          {"expected", "++++++++++-"}};
  std::set<std::string> unknown(allocators.begin(), allocators.end());
  for (const Allocator* allocator : Allocators())
    EXPECT_EQ(unknown.erase(allocator->name), 1u) << "no column for allocator " << allocator->name;
  for (const auto& row : rows) unknown.insert(row.first);
  for (const Scorer* scorer : Scorers())
    EXPECT_EQ(unknown.erase(scorer->name), 1u) << "no row for scorer " << scorer->name;
  EXPECT_EQ(unknown, std::set<std::string>()) << "columns and rows of what is not there";
  for (const auto& [scorer, marks] : rows) {
    for (size_t a = 0; a < allocators.size(); ++a) {
      const std::string spec = "snapkv:budget=400,scorer=" + scorer + ",allocator=" + allocators[a];
      if (marks[a] == '+') {
        Parsed(spec);
        continue;
      }
      const std::string why = Refusal(spec);
      EXPECT_NE(why.find("allocator " + allocators[a]), std::string::npos) << why;
      EXPECT_NE(why.find("scorer " + scorer), std::string::npos) << why;
      if (marks[a] == 'k') Parsed(spec + ",tova_scope=kvhead");
    }
  }
  EXPECT_EQ(Refusal("streaming:budget=64,allocator=ada"),
            "allocator ada compares the scores of heads, and scorer position has none");
  EXPECT_EQ(
      Refusal("nacl:budget=64,allocator=ada"),
      "allocator ada splits by scores, and the sampled part of scorer proxy_random has no share in them");
  EXPECT_EQ(Refusal("scissorhands:budget=64,allocator=ada"),
            "allocator ada compares the scores of heads, and the counters of scorer persistence are not "
            "comparable");
  EXPECT_EQ(Refusal("cokv:budget=64,scorer=window_qhead"),
            "allocator cokv has budgets per KV head, and scorer window_qhead selects per query head");
  EXPECT_EQ(Refusal("tova:budget=64,allocator=cokv"),
            "allocator cokv has budgets per KV head, and scorer last_row keeps one set of tokens for a whole "
            "layer; set tova_scope=kvhead");
  EXPECT_EQ(Refusal("pyramidinfer:budget=64,allocator=table"),
            "allocator table has budgets per KV head, and scorer window_ramp keeps one set of tokens for a "
            "whole layer");
}

TEST(Composition, ReducersAndDecode) {
  for (const char* spec :
       {"streaming:budget=64,reducer=cam", "h2o:budget=64,reducer=cam", "h2o:budget=64,reducer=weighted",
        "snapkv:budget=64,reducer=codebook", "cokv:budget=64,reducer=codebook,pos_mode=incache",
        "snapkv:budget=64,decode=reobserve,slack=3", "weightedkv:budget=64,kv=int4",
        "cam:budget=64,scorer=h2o", "spindlekv:budget=64,reducer=evict"}) {
    Parsed(spec);
  }
  EXPECT_EQ(Refusal("snapkv:budget=64,reducer=cam,decode=step"),
            "reducer cam works with scorer position, h2o or h2o_count, not with window");
  EXPECT_EQ(Refusal("cam:budget=64,decode=grow"),
            "reducer cam merges what each step evicts: it needs decode=step");
  EXPECT_EQ(Refusal("snapkv:budget=64,decode=step"),
            "decode=step needs a score at every token, and scorer window takes several rows of queries: use "
            "decode=grow or decode=reobserve");
  EXPECT_EQ(Refusal("tova:budget=64,reducer=weighted"),
            "reducer weighted works with scorer h2o, h2o_count or avg_accum, not with last_row");
  EXPECT_EQ(Refusal("weightedkv:budget=64,decode=grow"),
            "reducer weighted merges what each step evicts: it needs decode=step");
  EXPECT_EQ(Refusal("spindlekv:budget=64,decode=step"),
            "reducer codebook never removes an entry of its codebook: it needs decode=grow");
  EXPECT_EQ(Refusal("h2o:budget=64,decode=reobserve"),
            "decode=reobserve scores again with the newest queries: it needs scorer window, not h2o");
}

TEST(Composition, CallersTablesAreChecked) {
  Policy policy = Parsed("cokv:budget=64");
  policy.head_scores = {1, 2, NAN};
  EXPECT_EQ(ValidatePolicy(policy).message(), "head score 2 is not a number");
  policy.head_scores.clear();
  policy.table = {5, -1};
  EXPECT_EQ(ValidatePolicy(policy).message(), "slot count 1 of the table is negative: -1");
  policy.table.clear();
  policy.options[static_cast<int>(OptionId::kWindow)] = NAN;
  EXPECT_EQ(ValidatePolicy(policy).message(), "window is out of range: 1 .. 4096");
}

}  // namespace
}  // namespace kvc
