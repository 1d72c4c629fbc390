// Question sets in the forms of SQuAD 2.0 and HotpotQA, of texts without any meaning.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace kvc {

// Article a has paragraphs "Paragraph a.p ...", each with a question that has an answer and one that has
// none.
inline std::string SquadText(int n_articles, int n_paragraphs) {
  nlohmann::json data = nlohmann::json::array();
  for (int a = 0; a < n_articles; ++a) {
    nlohmann::json paragraphs = nlohmann::json::array();
    for (int p = 0; p < n_paragraphs; ++p) {
      const std::string id = std::to_string(a) + "." + std::to_string(p);
      nlohmann::json asked = {
          {"question", "What is in " + id + "?"},
          {"is_impossible", false},
          {"answers", {{{"text", "gold " + id}}, {{"text", "gold"}}, {{"text", "gold"}}}}};
      nlohmann::json impossible = {
          {"question", "Who?"}, {"is_impossible", true}, {"answers", nlohmann::json::array()}};
      paragraphs.push_back(
          {{"context", "Paragraph " + id + " holds gold " + id + "."}, {"qas", {impossible, asked}}});
    }
    data.push_back({{"title", "Article"}, {"paragraphs", paragraphs}});
  }
  return nlohmann::json({{"version", "v2.0"}, {"data", data}}).dump();
}

// Question q has ten documents, the first two of which say the answer; "Shared" is a document of all of them.
inline std::string HotpotText(int n_questions) {
  nlohmann::json data = nlohmann::json::array();
  for (int q = 0; q < n_questions; ++q) {
    nlohmann::json context = nlohmann::json::array();
    const auto add = [&](const std::string& title, const std::string& first, const std::string& second) {
      context.push_back(nlohmann::json::array({title, nlohmann::json::array({first, second})}));
    };
    add("Shared", "Seen ", "often.");
    for (int d = 1; d < 10; ++d) {
      const std::string id = std::to_string(q) + "." + std::to_string(d);
      add("Title " + id, "First of " + id + ". ", d < 3 ? "It is yes " + id + "." : "Nothing.");
    }
    data.push_back({{"question", "Which one is " + std::to_string(q) + "?"},
                    {"answer", "yes " + std::to_string(q) + ".1"},
                    {"context", context}});
  }
  return data.dump();
}

}  // namespace kvc
