// kvc verify: everything a reader checks before use, and one token through the network.
#include <cmath>
#include <memory>

#include "tools/command.h"
#include "tools/options.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct VerifyOptions {
  ModelOptions model;
  bool json = false;
};

struct Finding {
  std::string what, result;
  bool good = true;
};

Finding CheckHeadScores(const Model& model) {
  const int32_t n_tables = model.info().n_head_scores;
  for (int32_t i = 0; i < n_tables; ++i) {
    for (const float score : model.HeadScores(i)) {
      if (!std::isfinite(score))
        return {"head scores", Format("table %d has a score that is no number", i), false};
    }
  }
  return {"head scores", n_tables == 0 ? "none" : Format("%d, all numbers finite", n_tables), true};
}

Finding CheckTokenizer(const Model& model) {
  const std::string sample = "The quick brown fox, 1234: na\xc3\xafve \xe2\x82\xac\n";
  const TokenList tokens = model.Tokenize(sample, 0);
  const std::string back = model.Detokenize(tokens);
  if (back == sample)
    return {"tokenizer", Format("%zu characters to %zu tokens and back", sample.size(), tokens.size()), true};
  return {
      "tokenizer",
      "a sample does not come back unchanged; fine for vocabularies that lack characters or normalise text",
      true};
}

Finding CheckForward(const Model& model) {
  Session session(model, Policy("full"), DefaultSessionParams());
  const int32_t bos = model.info().bos_token;
  session.Prefill({bos >= 0 ? bos : 0});
  std::vector<float> logits(static_cast<size_t>(model.info().vocab_size));
  session.GetLogits(&logits);
  for (const float logit : logits) {
    if (!std::isfinite(logit))
      return {"one token through the network", "gives logits that are no numbers", false};
  }
  return {"one token through the network", "all logits finite", true};
}

int VerifyFile(const VerifyOptions& options) {
  if (options.model.trusted) throw UsageError("verify trusts nothing: leave --trusted away");
  const Model model = OpenModelFile(options.model);
  const Json about = model.Describe();
  const size_t n_tensors = about.value("tensors", Json::array()).size();
  std::vector<Finding> findings = {
      {"container", "complete, format version " + about.value("version", Json(nullptr)).dump(), true},
      {"directory", "config, tokenizer and shapes agree", true},
      {"checksums", Format("%zu tensors and the whole file", n_tensors), true},
  };
  findings.push_back(CheckHeadScores(model));
  findings.push_back(CheckTokenizer(model));
  findings.push_back(CheckForward(model));
  bool good = true;
  Table table({"checked", "", "result"}, "lll");
  Json checks = Json::array();
  for (const Finding& finding : findings) {
    good = good && finding.good;
    table.AddRow({finding.what, finding.good ? "good" : "BAD", finding.result});
    checks.push_back(Json{{"what", finding.what}, {"good", finding.good}, {"result", finding.result}});
  }
  if (options.json) {
    PrintJson(
        Json{{"good", good}, {"fingerprint", about.value("fingerprint", Json(nullptr))}, {"checks", checks}});
  } else {
    Print(table.Text() + "\n" + Printable(options.model.path) + (good ? " is good\n" : " is damaged\n"));
  }
  return good ? kExitGood : kExitFailed;
}

// For machines a bad file is an answer too.
int Verify(const VerifyOptions& options) {
  try {
    return VerifyFile(options);
  } catch (const StatusFailure& failure) {
    if (!options.json) throw;
    PrintJson(
        Json{{"good", false}, {"status", kvc_status_name(failure.status())}, {"error", failure.what()}});
    return kExitFailed;
  }
}

}  // namespace

Action AddVerify(CLI::App* app) {
  const auto options = std::make_shared<VerifyOptions>();
  AddModelOptions(app, &options->model, "FILE", kModelFile);
  app->add_flag("--json", options->json, "{\"good\": true, \"checks\": [...]} on stdout");
  return [options](Signals*) { return Verify(*options); };
}

}  // namespace kvc::tool
