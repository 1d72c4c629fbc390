// Reads the golden files of tests/data/goldens: reference values that were not made by this library.
#pragma once
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvc {

using Json = nlohmann::json;

inline Json ReadGolden(const std::string& name) {
  std::ifstream in(std::string(KVC_TEST_DATA) + "/goldens/" + name);
  return Json::parse(in);
}

// Writes a number as the policy text takes it.
inline std::string GoldenNumber(const Json& value) {
  char text[64];
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return std::to_string(value.get<int64_t>());
  std::snprintf(text, sizeof text, "%.9g", value.get<double>());
  return text;
}

// The policy of a golden case: the files use the symbols of the specification, the library plain words.
inline std::string GoldenSpec(const std::string& method, int budget, const Json& options) {
  const bool quantised = options.contains("bits");
  std::string name = quantised ? "snapkv" : method;
  std::string spec = name + ":";
  if (method != "full") spec += "budget=" + std::to_string(budget) + ",";
  spec += quantised ? "kv=int" + GoldenNumber(options["bits"]) : "kv=f32";
  for (const auto& [key, value] : options.items()) {
    if (value.is_null() || key == "scores" || key == "bits" || (key == "decode" && value != "reobserve"))
      continue;
    if (key == "pos_mode" && method == "cam") continue;
    if (key == "victim") {
      if (value == "h2o") spec += ",scorer=h2o";
      continue;
    }
    if (key == "n_sink" && options.contains("victim") && options["victim"] == "h2o") continue;
    const std::string plain = key == "w"         ? "window"
                              : key == "kappa"   ? "kernel"
                              : key == "kappa_v" ? "value_kernel"
                                                 : key;
    std::string text = GoldenNumber(value);
    if (key == "avg_edge" && text == "kappa") text = "kernel";
    spec += "," + plain + "=" + text;
  }
  if (method == "cam") spec += ",cam_prefill=oneshot";  // the rule the files are of
  if (method == "spindlekv") spec += ",spindle_code=always";
  return spec;
}

// Head scores of a case in layer order, empty when it has none.
inline std::vector<double> GoldenScores(const Json& options) {
  std::vector<double> flat;
  if (!options.contains("scores")) return flat;
  for (const Json& item : options["scores"]) {
    if (item.is_array()) {
      for (const Json& x : item) flat.push_back(x.get<double>());
    } else {
      flat.push_back(item.get<double>());
    }
  }
  return flat;
}

// null in a margin: nothing was decided there.
inline double Margin(const Json& value) { return value.is_number() ? value.get<double>() : INFINITY; }

}  // namespace kvc
