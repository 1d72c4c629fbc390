#include "tools/suite/ruler_questions.h"

#include <algorithm>
#include <iterator>

#include "tools/files.h"

namespace kvc::tool {
namespace {

[[noreturn]] void Refuse(const std::string& where, const std::string& expected) {
  throw Failure(where + ": expected " + expected);
}

const Json& Member(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key)) Refuse(where, std::string("\"") + key + "\"");
  return object[key];
}

const Json& ListMember(const Json& object, const char* key, const std::string& where) {
  const Json& list = Member(object, key, where);
  if (!list.is_array()) Refuse(where, std::string("a list under \"") + key + "\"");
  return list;
}

// Documents by their text while a file is read; numbers follow when all are known.
class Documents {
 public:
  void Add(std::string text) { texts_.push_back(std::move(text)); }
  void Close() {
    std::sort(texts_.begin(), texts_.end());
    texts_.erase(std::unique(texts_.begin(), texts_.end()), texts_.end());
  }
  size_t Find(const std::string& text) const {
    return static_cast<size_t>(std::lower_bound(texts_.begin(), texts_.end(), text) - texts_.begin());
  }
  std::vector<std::string> Take() { return std::move(texts_); }

 private:
  std::vector<std::string> texts_;
};

void AddOnce(size_t document, std::vector<size_t>* list) {
  if (std::count(list->begin(), list->end(), document) == 0) list->push_back(document);
}

void ReadParagraph(const Json& paragraph, const std::vector<size_t>& article, const Documents& documents,
                   const std::string& path, QuestionSet* set) {
  const size_t own = documents.Find(TextMember(paragraph, "context", path));
  for (const Json& asked : ListMember(paragraph, "qas", path)) {
    QuestionEntry entry;
    entry.question = TextMember(asked, "question", path);
    for (const Json& answer : ListMember(asked, "answers", path)) {
      const std::string text = TextMember(answer, "text", path);
      const bool known = std::count(entry.answers.begin(), entry.answers.end(), text) > 0;
      if (!text.empty() && !known) entry.answers.push_back(text);
    }
    const bool is_impossible = asked.contains("is_impossible") && asked["is_impossible"] == true;
    if (is_impossible || entry.answers.empty() || entry.question.empty()) continue;
    entry.needed = {own};
    std::remove_copy(article.begin(), article.end(), std::back_inserter(entry.near), own);
    set->entries.push_back(std::move(entry));
  }
}

void ReadSquad(const Json& data, const std::string& path, QuestionSet* set) {
  set->name = "SQuAD";
  Documents documents;
  for (const Json& article : data) {
    for (const Json& paragraph : ListMember(article, "paragraphs", path)) {
      Member(paragraph, "context", path);
      documents.Add(TextMember(paragraph, "context", path));
    }
  }
  documents.Close();
  for (const Json& article : data) {
    std::vector<size_t> numbers;
    for (const Json& paragraph : article["paragraphs"])
      AddOnce(documents.Find(TextMember(paragraph, "context", path)), &numbers);
    for (const Json& paragraph : article["paragraphs"])
      ReadParagraph(paragraph, numbers, documents, path, set);
  }
  set->documents = documents.Take();
}

// A title and its sentences: [title, [sentence, ...]].
std::string TextOfHotpot(const Json& document, const std::string& path) {
  constexpr const char* kForm = "[title, [sentence, ...]] under \"context\"";
  if (!document.is_array() || document.size() != 2 || !document[0].is_string() || !document[1].is_array())
    Refuse(path, kForm);
  std::string text = document[0].get<std::string>() + "\n";
  for (const Json& sentence : document[1]) {
    if (!sentence.is_string()) Refuse(path, kForm);
    text += sentence.get<std::string>();
  }
  return text;
}

void ReadHotpot(const Json& data, const std::string& path, QuestionSet* set) {
  set->name = "HotpotQA";
  Documents documents;
  for (const Json& asked : data) {
    for (const Json& document : ListMember(asked, "context", path))
      documents.Add(TextOfHotpot(document, path));
  }
  documents.Close();
  for (const Json& asked : data) {
    QuestionEntry entry;
    entry.question = TextMember(asked, "question", path);
    entry.answers = {TextMember(asked, "answer", path)};
    if (entry.question.empty() || entry.answers[0].empty()) continue;
    for (const Json& document : asked["context"])
      AddOnce(documents.Find(TextOfHotpot(document, path)), &entry.needed);
    set->entries.push_back(std::move(entry));
  }
  set->documents = documents.Take();
}

}  // namespace

QuestionSet ParseQuestionSet(const std::string& text, const std::string& path) {
  const Json document = ParseJsonText(text, path + ": neither SQuAD nor HotpotQA, it is no JSON");
  QuestionSet set;
  if (document.is_array()) {
    ReadHotpot(document, path, &set);
  } else {
    ReadSquad(ListMember(document, "data", path), path, &set);
  }
  if (set.entries.empty()) throw Failure(path + ": holds no question with an answer");
  return set;
}

SuiteItem QuestionItem(const QuestionSet& set, size_t n_documents, Draws draws) {
  const QuestionEntry& entry = set.entries[draws.item() % set.entries.size()];
  std::vector<size_t> chosen = entry.needed;
  const size_t n = std::min(std::max(n_documents, chosen.size()), set.documents.size());
  const size_t n_near = std::min(entry.near.size(), n - chosen.size());
  for (const size_t i : draws.Sample(entry.near.size(), n_near)) chosen.push_back(entry.near[i]);
  if (chosen.size() < n) {
    std::vector<char> taken(set.documents.size());
    for (const size_t document : chosen) taken[document] = 1;
    std::vector<size_t> others;
    for (size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] == 0) others.push_back(i);
    }
    for (const size_t i : draws.Sample(others.size(), n - chosen.size())) chosen.push_back(others[i]);
  }
  draws.Shuffle(&chosen);
  const std::string task =
      "Answer the question based on the given documents. Only give me the answer and do not output any other "
      "words.\n";
  SuiteItem item;
  item.context = task;
  item.context += "\nThe following are given documents.\n\n";
  for (size_t i = 0; i < chosen.size(); ++i)
    item.context += "Document " + std::to_string(i + 1) + ":\n" + set.documents[chosen[i]] + "\n\n";
  item.context += task;
  item.question = "\nQuestion: " + entry.question + " Answer:";
  item.expected = entry.answers;
  return item;
}

}  // namespace kvc::tool
