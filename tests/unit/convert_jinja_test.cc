// Templates against Jinja itself and transformers (tests/vectors/make_template_vectors.py), and what hostile
// ones cost.
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "models/convert/jinja/template.h"
#include "models/convert/turn_format.h"

namespace kvc {
namespace {

using Json = nlohmann::ordered_json;

std::string Folder() { return std::string(KVC_TEST_DATA) + "/templates/"; }

std::string ReadText(const std::string& name) {
  std::ifstream in(Folder() + name, std::ios::binary);
  EXPECT_TRUE(in.good()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

// The day of the vectors: 4 March 2025, 15:06:07.
std::tm Today() {
  std::tm t{};
  t.tm_year = 125, t.tm_mon = 2, t.tm_mday = 4, t.tm_hour = 15, t.tm_min = 6, t.tm_sec = 7;
  t.tm_wday = 2, t.tm_yday = 62;
  return t;
}

jinja::Value ValueOf(const Json& json) {
  if (json.is_boolean()) return jinja::Bool(json.get<bool>());
  if (json.is_number_integer()) return jinja::Int(json.get<int64_t>());
  if (json.is_number()) return jinja::Float(json.get<double>());
  if (json.is_string()) return jinja::Text(json.get<std::string>());
  if (json.is_array()) {
    std::vector<jinja::Value> items;
    for (const Json& item : json) items.push_back(ValueOf(item));
    return jinja::List(items);
  }
  if (json.is_object()) {
    std::vector<std::pair<jinja::Value, jinja::Value>> pairs;
    for (const auto& [key, value] : json.items()) pairs.emplace_back(jinja::Text(key), ValueOf(value));
    return jinja::Dict(pairs);
  }
  return jinja::None();
}

Result<std::string> Rendered(const std::string& text, const jinja::Variables& variables = {}) {
  const std::tm today = Today();
  auto parsed = jinja::Template::Parse(text);
  if (!parsed.ok()) return parsed.status();
  return parsed.value().Render(variables, &today);
}

TEST(ConvertJinja, LinesAreWhatJinjaMakesOfThem) {
  const Json vectors = Json::parse(ReadText("lines.json"));
  jinja::Variables variables;
  for (const auto& [name, value] : vectors["variables"].items()) variables.emplace_back(name, ValueOf(value));
  int n = 0;
  for (const Json& line : vectors["lines"]) {
    const std::string text = line["template"];
    const Result<std::string> out = Rendered(text, variables);
    ++n;
    if (line.contains("error")) {
      EXPECT_FALSE(out.ok()) << text << "\ngave: " << (out.ok() ? out.value() : "");
      EXPECT_EQ(out.status().code() == Code::kInvalid, line["error"] == "TemplateError") << text;
    } else {
      EXPECT_TRUE(out.ok()) << text << "\n" << out.status().message();
      if (!out.ok()) continue;
      EXPECT_EQ(out.value(), line["text"].get<std::string>()) << text;
    }
  }
  EXPECT_GE(n, 70);
}

TEST(ConvertJinja, ConversationsAreWhatTransformersMakesOfThem) {
  const Json vectors = Json::parse(ReadText("conversations.json"));
  const std::tm today = Today();
  int n = 0;
  for (const auto& [name, all] : vectors.items()) {
    const ChatTemplate chat{ReadText(name + ".jinja"), all["bos"], all["eos"], "", "", all["parts"]};
    for (const Json& talk : all["conversations"]) {
      std::vector<ChatMessage> messages;
      for (const Json& m : talk["messages"]) {
        const std::string role = m[0];
        messages.push_back({role == "system" ? ChatMessage::kSystem
                            : role == "user" ? ChatMessage::kUser
                                             : ChatMessage::kAssistant,
                            m[1]});
      }
      const Result<std::string> out = RenderChat(chat, messages, talk["answer"], &today);
      ++n;
      if (talk["text"].is_null()) {
        EXPECT_FALSE(out.ok()) << name;
        continue;
      }
      ASSERT_TRUE(out.ok()) << name << ": " << out.status().message();
      EXPECT_EQ(out.value(), talk["text"].get<std::string>()) << name << " " << talk["messages"];
    }
  }
  EXPECT_GE(n, 480);
}

void ExpectRefused(const std::string& text, const std::string& why) {
  const Result<std::string> out = Rendered(text);
  ASSERT_FALSE(out.ok()) << text.substr(0, 100);
  EXPECT_EQ(out.status().code(), Code::kUnsupported);
  EXPECT_NE(out.status().message().find(why), std::string::npos) << out.status().message();
}

std::string Repeated(const std::string& text, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += text;
  return out;
}

TEST(ConvertJinja, WhatIsNotSupportedIsNamedWithItsLine) {
  ExpectRefused("a\nb\n{% include 'x' %}", "line 3: \"include\" is not supported");
  ExpectRefused("{% extends 'x' %}", "extends");
  ExpectRefused("\n{{ 'x' | nosuch }}", "line 2: the filter \"nosuch\" is not supported");
  ExpectRefused("{{ 'x' is nosuch }}", "the test \"nosuch\" is not supported");
  ExpectRefused("{{ dict(**{'a': 1}) }}", "arguments out of a dict");
  ExpectRefused("{{ 'é'.upper() }}{{ 'é' | upper }}", "beyond ASCII");
  ExpectRefused("{{ 'é' | title }}", "beyond ASCII");
  ExpectRefused("{{ '%s' % 1 }}", "formatting with %");
  ExpectRefused("{% for x in [1] recursive %}{% endfor %}", "recursive");
  ExpectRefused("{{ strftime_now('%Q') }}", "%Q");
  ExpectRefused("\xff", "not UTF-8");
  ExpectRefused("{% break %}", "outside of a loop");
  ExpectRefused("{% if 1 %}", "ends within endif");
}

TEST(ConvertJinja, HostileTemplatesEnd) {
  ExpectRefused("{% for a in range(1000000) %}{% for b in range(1000000) %}{% endfor %}{% endfor %}",
                "too many steps");
  ExpectRefused("{% for a in range(1000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
                "too many steps");
  ExpectRefused(
      "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "too long");
  ExpectRefused("{{ 'x' * 100000000000 }}", "too long");
  ExpectRefused("{{ [0] * 900000000000000000 }}", "too long");
  ExpectRefused("{% for a in range(12000) %}{{ '" + Repeated("x", 100) + "' }}{% endfor %}", "too much");
  ExpectRefused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply");
  ExpectRefused(
      "{% macro m() %}{{ " + Repeated("[", 150) + "m()" + Repeated("]", 150) + " }}{% endmacro %}{{ m() }}",
      "nested too deeply");
  ExpectRefused("{{ ('a,' * 400000).split(',') | length }}", "too many steps");
  ExpectRefused("{% set ns = namespace(l=[]) %}{% for a in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}",
                "nested too deeply");
  ExpectRefused("{% set ns = namespace() %}{% set ns.me = ns %}", "nested too deeply");
  ExpectRefused("{% set ns = namespace() %}{% set ns.me = [ns] %}", "nested too deeply");
  ExpectRefused(
      "{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
      "{{ ns.l }}",
      "too long");
  ExpectRefused(
      "{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
      "{{ ns.l | tojson }}",
      "too long");
  ExpectRefused(
      "{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
      "{{ ns.l == [ns.l[0], ns.l[0]] }}{% set m = [ns.l[0], [ns.l[0][0], ns.l[0][1]]] %}{{ m == ns.l }}",
      "too many steps");
  ExpectRefused("{{ " + Repeated("(", 5000) + "1" + Repeated(")", 5000) + " }}", "nested too deeply");
  ExpectRefused("{{ " + Repeated("not ", 5000) + "1 }}", "nested too deeply");
  ExpectRefused("{{ 1" + Repeated(" + 1", 5000) + " }}", "nested too deeply");
  ExpectRefused("{{ 1" + Repeated(" | abs", 5000) + " }}", "nested too deeply");
  ExpectRefused("{{ " + Repeated("- ", 5000) + "1 }}", "nested too deeply");
  ExpectRefused(Repeated("{% if 1 %}", 5000), "nested too deeply");
  ExpectRefused("{{ 'aaaa'.replace('', 'x' * 1000000) }}", "too long");
  ExpectRefused("{{ 'a' | tojson(indent=999999999) }}", "indent");
  ExpectRefused("{{ 9223372036854775807 + 1 }}", "too large");
  ExpectRefused("{{ 999999999999999999 * 999999999999999999 }}", "too large");
  ExpectRefused(std::string((1 << 20) + 1, 'x'), "limit");
  // Copies of one text, filters that name filters, and work by the product of two sizes.
  const std::string many = "{% set a = 'a' * 1048576 %}{% set b = 'a' * 524287 + 'b' %}";
  for (const char* of :
       {"([a] * 100000) | sort", "([a] * 100000) | unique | list", "a | map(*(['map'] * 20000)) | list",
        "('\u00e9' * 524288).strip('\u00ea' * 524287 + '\u00e9')",
        "('\u00e9' * 524288) | trim('\u00ea' * 524287 + '\u00e9')", "b in a", "a.find(b)", "a.rfind(b)",
        "a.count(b)", "a.split(b)", "a.rsplit(b)", "a.replace(b, 'c')", "a | replace(b, 'c')",
        "[a] * 100 == [a + ''] * 100",
        "(' ' * 1048576) | int + (' ' * 1048576) | int + (' ' * 1048576) | int"})
    ExpectRefused(many + "{{ " + of + " }}", "too many steps");
  ExpectRefused("{{ 'a' | map(*(['map'] * 1500)) | list }}", "too many steps");
  ExpectRefused("{{ 'a' | map('map') | list }}", "a filter expected");
}

}  // namespace
}  // namespace kvc
