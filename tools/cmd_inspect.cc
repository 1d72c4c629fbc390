// kvc inspect: what a model file says about itself.
#include <map>
#include <memory>

#include "tools/command.h"
#include "tools/options.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct InspectOptions {
  ModelOptions model;
  bool json = false;
};

std::string Text(const Json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return "";
  return object[key].is_string() ? object[key].get<std::string>() : object[key].dump();
}

int64_t Number(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_number() ? object[key].get<int64_t>() : 0;
}

// A count where 0 means that the file does not say.
std::string Known(const Json& object, const char* key) {
  return Number(object, key) == 0 ? "-" : FormatCount(Number(object, key));
}

std::string FileText(const Model& model, const Json& about) {
  Table table({"file", model.path()}, "ll");
  table.AddRow({"size", FormatBytes(Number(about, "file_bytes"))});
  table.AddRow({"format version", Text(about, "version")});
  table.AddRow({"fingerprint", Text(about, "fingerprint")});
  int64_t packed = 0;
  for (const Json& tensor : about.value("tensors", Json::array())) packed += tensor.contains("layout");
  if (packed > 0)
    table.AddRow({"packed", FormatCount(packed) +
                                " matrices, for AVX2, AVX-512 and NEON: they are mapped as they lie"});
  table.AddRow({"made by", Text(about, "created_by")});
  table.AddRow({"from", Text(about, "source")});
  return table.Text();
}

std::string ModelText(const Json& about) {
  const Json config = about.value("config", Json::object()), rope = config.value("rope", Json::object());
  Table table({"model", Text(config, "name")}, "ll");
  table.AddRow({"architecture", Text(config, "architecture")});
  table.AddRow({"parameters", FormatParameters(Number(about, "n_parameters"))});
  table.AddRow({"layers", Text(config, "n_layers")});
  table.AddRow({"heads", Text(config, "n_heads") + " query, " + Text(config, "n_kv_heads") + " KV, of size " +
                             Text(config, "head_dim")});
  table.AddRow({"hidden, feed-forward", Text(config, "hidden_size") + ", " + Text(config, "ffn_size")});
  if (Number(config, "n_experts") > 0) {
    table.AddRow({"experts", Text(config, "n_experts") + " of that size in each layer, " +
                                 Text(config, "n_chosen") + " work on a token, with " +
                                 FormatParameters(Number(about, "n_parameters_active")) + " parameters"});
  }
  table.AddRow({"vocabulary", FormatCount(Number(config, "vocab_size"))});
  table.AddRow({"trained context", FormatCount(Number(config, "max_tokens")) + " tokens"});
  if (Number(config, "sliding_window") > 0) table.AddRow({"sliding window", Text(config, "sliding_window")});
  table.AddRow({"rotary positions", Format("theta %g", rope.value("theta", 0.0)) + ", scaling " +
                                        Text(rope, "scaling") + ", pairs " + Text(rope, "pairing")});
  table.AddRow({"query-key norm", config.value("qk_norm", false) ? "yes" : "no"});
  table.AddRow({"output head", config.value("tied_head", false) ? "the embedding matrix" : "its own"});
  return table.Text();
}

std::string TokenizerText(const Json& about) {
  const Json tokenizer = about.value("tokenizer", Json::object()),
             turns = about.value("turn_format", Json::object());
  Table table({"tokenizer", Text(tokenizer, "kind")}, "ll");
  table.AddRow({"pieces, merges", FormatCount(Number(tokenizer, "n_pieces")) + ", " +
                                      FormatCount(Number(tokenizer, "n_merges"))});
  const char* begin = tokenizer.contains("begin_tokens") ? "begin_tokens" : "bos";
  table.AddRow({"begin, end", Text(tokenizer, begin) + ", " + Text(tokenizer, "eos")});
  table.AddRow({"stop tokens", Text(tokenizer, "stop_tokens")});
  table.AddRow({"prompts start with BOS", tokenizer.value("add_bos", false) ? "yes" : "no"});
  bool any = false;
  for (const auto& [key, value] : turns.items()) {
    if (!value.is_string() || value.get<std::string>().empty()) continue;
    table.AddRow({key, value.dump()});
    any = true;
  }
  if (!any) table.AddRow({"turn format", "none"});
  return table.Text();
}

std::string HeadScoresText(const Json& about) {
  Table table({"head scores", "estimator", "shape", "data", "samples", "budget", "alpha"}, "llllrrr");
  const Json tables = about.value("head_scores", Json::array());
  for (const Json& scores : tables) {
    const Json rows = scores.value("scores", Json::array());
    table.AddRow({Text(scores, "name"), Text(scores, "estimator"),
                  Format("%zu x %zu", rows.size(), rows.empty() ? size_t{0} : rows[0].size()),
                  Text(scores, "dataset"), Known(scores, "n_samples"), Known(scores, "budget"),
                  Known(scores, "alpha")});
  }
  if (tables.empty()) table.AddRow({"none"});
  return table.Text();
}

// Tensors of one role and type together: a model has hundreds, all layers alike.
std::string TensorsText(const Json& about) {
  struct Group {
    std::string role, type, shape;
    int64_t count = 0, bytes = 0;
  };
  std::vector<Group> groups;
  std::map<std::string, size_t> index;
  int64_t bytes = 0, count = 0;
  for (const Json& tensor : about.value("tensors", Json::array())) {
    const Json shape = tensor.value("shape", Json::array({0, 0}));
    const std::string type = Text(tensor, "type") +
                             (Number(tensor, "group") > 0 ? "/" + Text(tensor, "group") : "") +
                             (tensor.contains("layout") ? " " + Text(tensor, "layout") : "");
    const std::string size = shape[0].dump() + " x " + shape[1].dump();
    const auto [entry, is_new] = index.try_emplace(Text(tensor, "role") + type + size, groups.size());
    if (is_new) groups.push_back({Text(tensor, "role"), type, size});
    Group& group = groups[entry->second];
    ++group.count;
    group.bytes += Number(tensor, "size");
    bytes += Number(tensor, "size");
    ++count;
  }
  Table table({"tensors", "type", "rows x columns", "number", "bytes"}, "llrrr");
  for (const Group& group : groups)
    table.AddRow(
        {group.role, group.type, group.shape, std::to_string(group.count), FormatBytes(group.bytes)});
  table.AddRule();
  table.AddRow({"all", "", "", std::to_string(count), FormatBytes(bytes)});
  return table.Text();
}

int Inspect(const InspectOptions& options, Signals* signals) {
  const Model model = OpenModel(options.model, signals);
  const Json about = model.Describe();
  if (options.json) {
    PrintJson(about);
  } else {
    Print(FileText(model, about) + "\n" + ModelText(about) + "\n" + TokenizerText(about) + "\n" +
          HeadScoresText(about) + "\n" + TensorsText(about));
  }
  return kExitGood;
}

}  // namespace

Action AddInspect(CLI::App* app) {
  const auto options = std::make_shared<InspectOptions>();
  options->model.plan_only = true;
  AddModelOptions(app, &options->model);
  app->add_flag("--json", options->json, "Everything, as one JSON document on stdout");
  return [options](Signals* signals) { return Inspect(*options, signals); };
}

}  // namespace kvc::tool
