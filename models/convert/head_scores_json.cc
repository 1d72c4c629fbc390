#include "models/convert/head_scores_json.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/model/model_check.h"
#include "models/convert/json.h"

namespace kvc {
namespace {

constexpr size_t kMaxTables = 64;  // of one file

Status AppendNumbers(const Json& json, const std::string& at, std::vector<double>* out) {
  if (!json.is_array()) return Error(Code::kBadModel, "%s: must be an array of numbers", at.c_str());
  for (const Json& value : json) {
    if (value.is_array()) {
      for (const Json& inner : value) {
        if (!inner.is_number())
          return Error(Code::kBadModel, "%s: holds something that is no number", at.c_str());
        out->push_back(inner.get<double>());
      }
    } else if (value.is_number()) {
      out->push_back(value.get<double>());
    } else {
      return Error(Code::kBadModel, "%s: holds something that is no number", at.c_str());
    }
  }
  return {};
}

// Rows of nested scores must be equally long, else a head would take its neighbour's place.
Status CheckRows(const Json& scores, int32_t n_layers, int32_t n_columns, const std::string& at) {
  if (scores.empty() || !scores[0].is_array()) return {};
  bool regular = scores.size() == static_cast<size_t>(n_layers);
  for (const Json& row : scores)
    regular = regular && row.is_array() && row.size() == static_cast<size_t>(n_columns);
  return regular ? Status()
                 : Error(Code::kInvalid, "%s: must be %d rows of %d", at.c_str(), n_layers, n_columns);
}

// The numbers of a table whose shape is known.
Status ReadRows(const Json& scores, int32_t n_layers, int32_t n_columns, const std::string& at,
                std::vector<double>* out) {
  KVC_RETURN_IF_ERROR(AppendNumbers(scores, at, out));
  return CheckRows(scores, n_layers, n_columns, at);
}

Status SetScores(const std::vector<double>& values, const ModelConfig& config, const std::string& at,
                 HeadScoreTable* table) {
  const bool by_kv = table->n_columns == config.n_kv_heads, by_query = table->n_columns == config.n_heads;
  const bool columns_fit = table->estimator == "ssv"         ? by_kv
                           : table->estimator == "headkv-r2" ? by_query
                                                             : by_kv || by_query;
  if (table->n_layers != config.n_layers || !columns_fit) {
    return Error(
        Code::kInvalid,
        "%s: %s scores of %d layers, %d heads do not fit this model: %d layers, %d KV heads, %d query heads",
        at.c_str(), table->estimator.c_str(), table->n_layers, table->n_columns, config.n_layers,
        config.n_kv_heads, config.n_heads);
  }
  if (values.size() != static_cast<size_t>(table->n_layers) * static_cast<size_t>(table->n_columns)) {
    return Error(Code::kInvalid, "%s: %zu scores, %d x %d are needed", at.c_str(), values.size(),
                 table->n_layers, table->n_columns);
  }
  for (const double value : values) {
    const float score = static_cast<float>(value);
    if (!std::isfinite(score))
      return Error(Code::kBadModel, "%s: score %zu is not finite", at.c_str(), table->scores.size());
    if (table->estimator == "headkv-r2" && score < 0)
      return Error(Code::kBadModel, "%s: score %zu is negative", at.c_str(), table->scores.size());
    table->scores.push_back(score);
  }
  return {};
}

Status ParseBare(const Json& json, const std::string& where, const ModelConfig& config,
                 HeadScoreTable* table) {
  std::vector<double> values;
  KVC_RETURN_IF_ERROR(AppendNumbers(json, where, &values));
  const bool by_kv =
      values.size() == static_cast<size_t>(config.n_layers) * static_cast<size_t>(config.n_kv_heads);
  table->name = "scores", table->estimator = by_kv ? "ssv" : "headkv-r2";
  table->n_layers = config.n_layers, table->n_columns = by_kv ? config.n_kv_heads : config.n_heads;
  KVC_RETURN_IF_ERROR(CheckRows(json, table->n_layers, table->n_columns, where));
  return SetScores(values, config, where, table);
}

// "variant: both; runs: 2": members that no field of the table has.
std::string NoteOf(const Json& json) {
  std::string note;
  for (const char* key : {"note", "variant", "utility", "samples_per_size", "sizes", "runs",
                          "correlation_between_runs", "source"}) {
    const auto it = json.find(key);
    if (it == json.end() || it->is_null()) continue;
    const std::string text = it->is_string() ? it->get<std::string>() : it->dump();
    note += (note.empty() ? "" : "; ") + (std::string(key) == "note" ? text : std::string(key) + ": " + text);
  }
  return note;
}

Status ParseOwn(const JsonObject& object, const ModelConfig& config, HeadScoreTable* table) {
  KVC_RETURN_IF_ERROR(object.String("name", &table->name));
  KVC_RETURN_IF_ERROR(object.String("estimator", &table->estimator));
  if (table->name.empty() || table->estimator.empty())
    return Error(Code::kBadModel, "%s: name and estimator must be given", object.where().c_str());
  KVC_RETURN_IF_ERROR(object.String("dataset", &table->dataset));
  if (table->dataset.empty()) KVC_RETURN_IF_ERROR(object.String("data", &table->dataset));
  KVC_RETURN_IF_ERROR(object.String("tool", &table->tool));
  KVC_RETURN_IF_ERROR(object.Int("samples", 0, INT64_MAX, &table->n_samples));
  KVC_RETURN_IF_ERROR(object.Int("seed", INT64_MIN, INT64_MAX, &table->seed));
  KVC_RETURN_IF_ERROR(object.Int("budget", 0, INT32_MAX, &table->budget));
  KVC_RETURN_IF_ERROR(object.Int("alpha", 0, INT32_MAX, &table->alpha));
  table->note = NoteOf(object.json());
  int64_t per_size = 0, runs = 1;
  KVC_RETURN_IF_ERROR(object.Int("samples_per_size", 0, 1 << 30, &per_size));
  KVC_RETURN_IF_ERROR(object.Int("runs", 1, 1 << 20, &runs));
  const Json* sizes = object.Find("sizes");
  if (table->n_samples == 0 && sizes != nullptr && sizes->is_array()) {
    table->n_samples = per_size * runs * static_cast<int64_t>(std::min<size_t>(sizes->size(), 1024));
  }
  const Json* shape = object.Find("shape");
  if (shape == nullptr || !shape->is_array() || shape->size() != 2)
    return Error(Code::kBadModel, "%s: shape must be [layers, heads]", object.where().c_str());
  const Json named = {{"layers", (*shape)[0]}, {"heads", (*shape)[1]}};
  const JsonObject dims(named, object.where() + ": shape");
  KVC_RETURN_IF_ERROR(dims.Int("layers", 1, kMaxLayers, &table->n_layers));
  KVC_RETURN_IF_ERROR(dims.Int("heads", 1, kMaxHeads, &table->n_columns));
  const std::string at = object.where() + ": scores";
  const Json* scores = object.Find("scores");
  if (scores == nullptr) return Error(Code::kBadModel, "%s are missing", at.c_str());
  std::vector<double> values;
  KVC_RETURN_IF_ERROR(ReadRows(*scores, table->n_layers, table->n_columns, at, &values));
  return SetScores(values, config, at, table);
}

// One slice of CoKV's accumulators: adds its centred estimate plus the slice mean to `ssv` (methods.md 3.4,
// `both`).
Status AddSlice(const Json& json, const std::string& size_text, const std::string& at,
                const HeadScoreTable& table, std::vector<double>* ssv, int64_t* samples) {
  const JsonObject slice(json, at);
  const size_t n = ssv->size();
  if (size_text.empty() || size_text.size() > 6 ||
      size_text.find_first_not_of("0123456789") != std::string::npos) {
    return Error(Code::kBadModel, "%s: the coalition size must be a number", at.c_str());
  }
  const double j = std::stoi(size_text), players = static_cast<double>(n);
  if (j < 1 || j >= players)
    return Error(Code::kBadModel, "%s: a coalition of %g among %zu heads", at.c_str(), j, n);
  std::vector<double> part[4];
  static constexpr const char* kKeys[] = {"coalition_sum", "coalition_count", "complement_sum",
                                          "complement_count"};
  for (int i = 0; i < 4; ++i) {
    const Json* value = slice.Find(kKeys[i]);
    if (value == nullptr) return Error(Code::kBadModel, "%s: %s is missing", at.c_str(), kKeys[i]);
    KVC_RETURN_IF_ERROR(ReadRows(*value, table.n_layers, table.n_columns, at + ": " + kKeys[i], &part[i]));
    if (part[i].size() != n)
      return Error(Code::kBadModel, "%s: %s has %zu values for %zu heads", at.c_str(), kKeys[i],
                   part[i].size(), n);
  }
  int64_t m = 0;
  KVC_RETURN_IF_ERROR(slice.Int("samples", 0, 1 << 30, &m));
  if (m < 1) return Error(Code::kBadModel, "%s: not enough samples", at.c_str());
  // Each sample adds its utility to j coalition sums, so their total is j times the sum of the utilities.
  const double mean = std::accumulate(part[0].begin(), part[0].end(), 0.0) / j / static_cast<double>(m);
  for (size_t i = 0; i < n; ++i) {
    if (!(part[1][i] >= 1) || !(part[3][i] >= 1))
      return Error(Code::kBadModel, "%s: head %zu: not enough samples", at.c_str(), i);
    (*ssv)[i] += (players - j) / players * (part[0][i] / part[1][i] + part[2][i] / part[3][i]) + mean;
  }
  *samples += m;
  return {};
}

Status ParseCokv(const JsonObject& object, const ModelConfig& config, std::vector<HeadScoreTable>* tables) {
  int32_t layers = 0, heads = 0;
  KVC_RETURN_IF_ERROR(object.Int("layers", 1, kMaxLayers, &layers));
  KVC_RETURN_IF_ERROR(object.Int("kv_heads", 1, kMaxHeads, &heads));
  const Json* tasks = object.Find("tasks");
  if (tasks == nullptr || !tasks->is_object() || tasks->empty() || tasks->size() > kMaxTables) {
    return Error(Code::kBadModel, "%s: tasks must be an object of 1 to %zu members", object.where().c_str(),
                 kMaxTables);
  }
  for (const auto& [task, slices] : tasks->items()) {
    const std::string at = object.where() + ": task " + task;
    HeadScoreTable table;
    table.name = "ssv-" + task, table.estimator = "ssv", table.dataset = task, table.n_layers = layers,
    table.n_columns = heads;
    KVC_RETURN_IF_ERROR(object.String("source", &table.note));
    if (!slices.is_object() || slices.empty()) return Error(Code::kBadModel, "%s: no slices", at.c_str());
    std::vector<double> ssv(static_cast<size_t>(layers) * static_cast<size_t>(heads), 0.0);
    for (const auto& [size, slice] : slices.items())
      KVC_RETURN_IF_ERROR(AddSlice(slice, size, at + ", size " + size, table, &ssv, &table.n_samples));
    for (double& value : ssv) value /= static_cast<double>(slices.size());
    KVC_RETURN_IF_ERROR(SetScores(ssv, config, at, &table));
    tables->push_back(std::move(table));
  }
  return {};
}

Status ParsePublished(const JsonObject& object, const ModelConfig& config,
                      std::vector<HeadScoreTable>* tables) {
  std::string method;
  KVC_RETURN_IF_ERROR(object.String("method", &method));
  if (method.compare(0, 4, "CoKV") == 0) return ParseCokv(object, config, tables);
  if (method.compare(0, 9, "HeadKV-R2") != 0)
    return Error(Code::kUnsupported, "%s: head scores of method '%.60s' are not known",
                 object.where().c_str(), method.c_str());
  HeadScoreTable table;
  table.name = table.estimator = "headkv-r2";
  KVC_RETURN_IF_ERROR(object.Int("layers", 1, kMaxLayers, &table.n_layers));
  KVC_RETURN_IF_ERROR(object.Int("query_heads", 1, kMaxHeads, &table.n_columns));
  KVC_RETURN_IF_ERROR(object.String("source", &table.note));
  const Json* scores = object.Find("scores");
  if (scores == nullptr) return Error(Code::kBadModel, "%s: scores are missing", object.where().c_str());
  std::vector<double> values;
  KVC_RETURN_IF_ERROR(
      ReadRows(*scores, table.n_layers, table.n_columns, object.where() + ": scores", &values));
  KVC_RETURN_IF_ERROR(SetScores(values, config, object.where(), &table));
  tables->push_back(std::move(table));
  return {};
}

// {"0-0": [0.1, 0.2], "0-1": [...], ...}: layer, query head, one score a sample.
Status ParsePerHead(const Json& json, const std::string& where, const ModelConfig& config,
                    HeadScoreTable* table) {
  table->name = table->estimator = "headkv-r2";
  table->n_layers = config.n_layers, table->n_columns = config.n_heads;
  const size_t n_heads = static_cast<size_t>(config.n_layers) * static_cast<size_t>(config.n_heads);
  if (json.size() != n_heads)
    return Error(Code::kInvalid, "%s: scores of %zu heads, the model has %zu query heads", where.c_str(),
                 json.size(), n_heads);
  std::vector<double> values;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    for (int32_t head = 0; head < config.n_heads; ++head) {
      const std::string key = Format("%d-%d", layer, head);
      const auto it = json.find(key);
      if (it == json.end())
        return Error(Code::kInvalid, "%s: head %s is missing", where.c_str(), key.c_str());
      std::vector<double> samples;
      KVC_RETURN_IF_ERROR(AppendNumbers(*it, where + ": head " + key, &samples));
      if (samples.empty())
        return Error(Code::kBadModel, "%s: head %s: not enough samples", where.c_str(), key.c_str());
      values.push_back(std::accumulate(samples.begin(), samples.end(), 0.0) /
                       static_cast<double>(samples.size()));
      table->n_samples = static_cast<int64_t>(samples.size());
    }
  }
  return SetScores(values, config, where, table);
}

}  // namespace

Result<std::vector<HeadScoreTable>> ParseHeadScores(Span<const uint8_t> text, const std::string& where,
                                                    const ModelConfig& config) {
  auto parsed = ParseJson(text, where);
  if (!parsed.ok()) return parsed.status();
  const Json& json = parsed.value();
  const JsonObject object(json, where);
  std::vector<HeadScoreTable> tables;
  std::string format;
  if (json.is_object()) KVC_RETURN_IF_ERROR(object.String("format", &format));
  if (format == "kvc-head-scores/1") {
    KVC_RETURN_IF_ERROR(ParsePublished(object, config, &tables));
  } else if (!format.empty()) {
    return Error(Code::kUnsupported, "%s: the layout '%.60s' is not known", where.c_str(), format.c_str());
  } else {
    tables.emplace_back();
    if (json.is_array())
      KVC_RETURN_IF_ERROR(ParseBare(json, where, config, &tables[0]));
    else if (object.Has("scores"))
      KVC_RETURN_IF_ERROR(ParseOwn(object, config, &tables[0]));
    else if (json.is_object() && json.contains("0-0"))
      KVC_RETURN_IF_ERROR(ParsePerHead(json, where, config, &tables[0]));
    else
      return Error(Code::kUnsupported, "%s: head scores in a layout that is not known", where.c_str());
  }
  const Status storable = CheckHeadScores(tables, config);
  if (!storable.ok()) return Status(storable.code(), where + ": " + storable.message());
  return tables;
}

}  // namespace kvc
