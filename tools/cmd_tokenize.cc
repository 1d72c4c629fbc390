// kvc tokenize: text to token ids.
#include <algorithm>
#include <memory>

#include "tools/command.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct TokenizeOptions {
  ModelOptions model;
  std::string text, file;
  bool bos = false, goes_on = false, special = false, pieces = false, json = false;
};

// Bytes that are no whole character are replaced where JSON is written (U+FFFD).
std::string PieceOf(const Model& model, int32_t token) { return model.Detokenize({token}); }

int Tokenize(const TokenizeOptions& options, Signals* signals) {
  const Model model = OpenModel(options.model, signals);
  const std::string text = options.file.empty() ? options.text : ReadFile(options.file, kMaxDataBytes);
  const TokenList tokens =
      model.Tokenize(text, (options.bos ? KVC_ADD_BOS : 0) | (options.goes_on ? KVC_CONTINUE : 0) |
                               (options.special ? KVC_PARSE_SPECIAL : 0));
  if (options.json) {
    Json out{{"tokens", tokens}, {"n_tokens", tokens.size()}};
    if (options.pieces) {
      Json& pieces = out["pieces"] = Json::array();
      for (const int32_t token : tokens) pieces.push_back(PieceOf(model, token));
    }
    PrintJson(out);
    return kExitGood;
  }
  if (options.pieces) {
    Table table({"id", "text"}, "rl");
    for (const int32_t token : tokens)
      table.AddRow({std::to_string(token),
                    Json(PieceOf(model, token)).dump(-1, ' ', false, Json::error_handler_t::replace)});
    Print(table.Text());
    return kExitGood;
  }
  std::string line;
  for (const int32_t token : tokens) line += (line.empty() ? "" : " ") + std::to_string(token);
  Print(line + "\n");
  return kExitGood;
}

}  // namespace

Action AddTokenize(CLI::App* app) {
  const auto options = std::make_shared<TokenizeOptions>();
  options->model.plan_only = true;
  AddModelOptions(app, &options->model);
  CLI::Option* text = app->add_option("--text", options->text, "The text")->type_name("TEXT");
  CLI::Option* file = AddInput(app, "--file", &options->file, "The text from a file; - = standard input");
  file->excludes(text);
  CLI::Option* bos = app->add_flag("--bos", options->bos, "Put the begin-of-text token first");
  app->add_flag("--continue", options->goes_on, "The text goes on behind another: no space before it")
      ->excludes(bos);
  app->add_flag("--special", options->special, "Special tokens written in the text become their ids");
  app->add_flag("--pieces", options->pieces, "The text of every token: a table, or with --json \"pieces\"");
  app->add_flag("--json", options->json, "{\"tokens\": [...]} on stdout");
  return [options, text, file](Signals* signals) {
    if (text->count() + file->count() == 0)
      throw UsageError("tokenize needs --text TEXT or --file FILE (- = standard input)");
    return Tokenize(*options, signals);
  };
}

}  // namespace kvc::tool
