#include "tools/explain/page.h"

#include <algorithm>
#include <map>
#include <optional>

#include "tools/score/estimators.h"
#include "tools/score/svg.h"

namespace kvc::tool {
namespace {

constexpr size_t kLeastPolicies = 3;  // of a rank correlation

// One number of a policy, over all layers.
struct Measure {
  const char* name;
  double (*of)(const LayerLoss& layer);  // sums over queries of one layer
};

double RelativeOf(const LayerLoss& layer) { return layer.output > 0 ? layer.loss / layer.output : 0; }

constexpr Measure kMeasures[] = {
    {"loss", [](const LayerLoss& l) { return l.loss; }},
    {"bound", [](const LayerLoss& l) { return l.bound; }},
    {"bound_by_head", [](const LayerLoss& l) { return l.bound_by_head; }},
    {"retained", [](const LayerLoss& l) { return l.retained; }},
};

// Means over queries, per layer.
std::vector<double> LayersOf(const ExplainSums& sums, double (*of)(const LayerLoss&)) {
  std::vector<double> values;
  for (const LayerLoss& layer : sums.layers)
    values.push_back(of(layer) / static_cast<double>(std::max<int64_t>(sums.n_queries, 1)));
  return values;
}

std::vector<double> RelativeLayers(const ExplainSums& sums) {
  std::vector<double> values;
  for (const LayerLoss& layer : sums.layers) values.push_back(RelativeOf(layer));
  return values;
}

std::vector<double> SimilarityOf(const ExplainSums& sums) {
  std::vector<double> values = sums.similarity;
  for (double& v : values) v /= static_cast<double>(std::max<int64_t>(sums.n_queries, 1));
  return values;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// What a rank correlation is over: a policy on a kind, or over all kinds.
struct Point {
  double accuracy = 0, kl = 0;
  std::map<std::string, double> measures;
};

Point PointOf(const ExplainRow& row) {
  Point point{row.accuracy, row.kl, {}};
  for (const Measure& m : kMeasures) point.measures[m.name] = Mean(LayersOf(row.sums, m.of));
  point.measures["relative_loss"] = Mean(RelativeLayers(row.sums));
  return point;
}

// Policies that drop something, by kind; "all" is the mean over kinds where there are several.
std::vector<std::pair<std::string, std::vector<Point>>> PointsByKind(const Explanation& explanation) {
  std::vector<std::pair<std::string, std::vector<Point>>> out;
  std::map<std::string, std::vector<Point>> by_policy;
  std::vector<std::string> order;
  for (const ExplainKind& kind : explanation.kinds) {
    out.push_back({kind.kind, {}});
    for (const ExplainRow& row : explanation.rows) {
      if (row.kind != kind.kind || row.sums.n_queries == 0) continue;
      const Point point = PointOf(row);
      if (point.measures.at("bound") <= 0) continue;
      out.back().second.push_back(point);
      if (by_policy.count(row.policy) == 0) order.push_back(row.policy);
      by_policy[row.policy].push_back(point);
    }
  }
  if (explanation.kinds.size() < 2) return out;
  out.push_back({"all", {}});
  for (const std::string& policy : order) {
    const std::vector<Point>& points = by_policy[policy];
    if (points.size() != explanation.kinds.size()) continue;
    Point mean;
    const double n = static_cast<double>(points.size());
    for (const Point& p : points) {
      mean.accuracy += p.accuracy / n, mean.kl += p.kl / n;
      for (const auto& [name, value] : p.measures) mean.measures[name] += value / n;
    }
    out.back().second.push_back(mean);
  }
  return out;
}

struct Correlation {
  std::string kind, measure;
  size_t n_policies = 0;
  std::optional<double> with_accuracy, with_kl;  // nothing: all policies have the same number
};

std::optional<double> RankCorrelation(const std::vector<double>& a, const std::vector<double>& b) {
  for (const std::vector<double>* values : {&a, &b}) {
    if (std::all_of(values->begin(), values->end(), [&](double v) { return v == values->front(); }))
      return {};
  }
  return Spearman(a, b);
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }
std::string OrDash(const std::optional<double>& value) { return value ? Format("%+.2f", *value) : "-"; }

std::vector<Correlation> Correlations(const Explanation& explanation) {
  std::vector<Correlation> out;
  for (const auto& [kind, points] : PointsByKind(explanation)) {
    if (points.size() < kLeastPolicies) continue;
    std::vector<double> accuracy, kl;
    for (const Point& p : points) accuracy.push_back(p.accuracy), kl.push_back(p.kl);
    for (const char* name : {"loss", "relative_loss", "bound", "bound_by_head", "retained"}) {
      std::vector<double> values;
      for (const Point& p : points) values.push_back(p.measures.at(name));
      out.push_back(
          {kind, name, points.size(), RankCorrelation(values, accuracy), RankCorrelation(values, kl)});
    }
  }
  return out;
}

std::vector<double> Concentration(const ExplainKind& kind) {
  std::vector<double> values = kind.sums.top;
  for (double& v : values) v /= static_cast<double>(std::max<int64_t>(kind.sums.n_queries, 1));
  return values;
}

std::vector<double> KeptByPosition(const ExplainSums& sums) {
  std::vector<double> kept = sums.kept;
  for (double& v : kept) v /= static_cast<double>(std::max<int64_t>(sums.n_questions, 1));
  return kept;
}

// Means over prompts, per layer.
std::vector<Spectrum> SpectraOf(const std::vector<Spectrum>& sums, int64_t n_prompts) {
  std::vector<Spectrum> means(sums.size());
  for (size_t l = 0; l < sums.size(); ++l)
    AddSpectrum(sums[l], 1 / static_cast<double>(std::max<int64_t>(n_prompts, 1)), &means[l]);
  return means;
}

Json SpectraJson(const std::vector<Spectrum>& layers) {
  Json out;
  for (const Spectrum& s : layers) {
    out["normalized"].push_back(s.normalized);
    out["top_energy"].push_back(s.top_energy);
    out["top_sum"].push_back(s.top_sum);
    out["effective_rank"].push_back(s.effective_rank);
    out["rank_90"].push_back(s.rank_90);
  }
  return out;
}

void PrintSpectra(const Explanation& explanation) {
  Table table({"kind", "layer", "of", "largest, of squares", "largest, of sum", "effective rank",
               "for 90 % of squares"},
              "lrlrrrr");
  for (const ExplainKind& kind : explanation.kinds) {
    const std::vector<Spectrum> keys = SpectraOf(kind.sums.keys, kind.sums.n_prompts),
                                values = SpectraOf(kind.sums.values, kind.sums.n_prompts);
    for (size_t l = 0; l < keys.size(); ++l) {
      for (const auto& [name, s] : {std::pair("keys", &keys[l]), std::pair("values", &values[l])}) {
        table.AddRow({kind.kind, std::to_string(l), name, FormatPercent(s->top_energy),
                      FormatPercent(s->top_sum), Format("%.1f", s->effective_rank),
                      Format("%.1f", s->rank_90)});
      }
    }
  }
  Print("\nsingular values of the full cache, mean over KV heads and prompts\n" + table.Text());
}

void DrawSpectra(const ExplainKind& kind, SvgPage* page) {
  LineChart curve{
      kind.kind + ": singular values over the largest, mean over layers", "number", "share", {}, 0, ""},
      rank{kind.kind + ": effective rank of what is cached", "layer", "rank", {}, 0, ""};
  for (const auto& [name, sums] :
       {std::pair("keys", &kind.sums.keys), std::pair("values", &kind.sums.values)}) {
    const std::vector<Spectrum> layers = SpectraOf(*sums, kind.sums.n_prompts);
    Spectrum mean;
    Series ranks{name, {}, {}}, shares{name, {}, {}};
    for (size_t l = 0; l < layers.size(); ++l) {
      AddSpectrum(layers[l], 1 / static_cast<double>(layers.size()), &mean);
      ranks.x.push_back(static_cast<double>(l)), ranks.y.push_back(layers[l].effective_rank);
    }
    for (size_t i = 1; i <= mean.normalized.size(); ++i) shares.x.push_back(static_cast<double>(i));
    shares.y = mean.normalized;
    curve.series.push_back(shares), rank.series.push_back(ranks);
  }
  page->Add(curve), page->Add(rank);
}

std::string ShortName(const std::string& spec) {
  constexpr size_t kMost = 24;
  return spec.size() <= kMost ? spec : spec.substr(0, kMost - 2) + "..";
}

}  // namespace

Json ExplainRowJson(const ExplainSums& sums) {
  Json out{{"n_queries", sums.n_queries},
           {"relative_loss", RelativeLayers(sums)},
           {"attention_similarity", SimilarityOf(sums)},
           {"kept_by_position", KeptByPosition(sums)}};
  for (const Measure& m : kMeasures) out[m.name] = LayersOf(sums, m.of);
  return out;
}

Json ExplainJson(const Explanation& explanation) {
  Json concentration = Json::array(), spectra = Json::array(), correlations = Json::array();
  for (const ExplainKind& kind : explanation.kinds) {
    const std::vector<double> values = Concentration(kind);
    Json layers = Json::array();
    for (auto at = values.begin(); at != values.end(); at += explanation.n_heads)
      layers.push_back(std::vector<double>(at, at + explanation.n_heads));
    concentration.push_back(
        {{"kind", kind.kind}, {"n_queries", kind.sums.n_queries}, {"top", std::move(layers)}});
    const int64_t n = kind.sums.n_prompts;
    spectra.push_back({{"kind", kind.kind},
                       {"n_prompts", n},
                       {"keys", SpectraJson(SpectraOf(kind.sums.keys, n))},
                       {"values", SpectraJson(SpectraOf(kind.sums.values, n))}});
  }
  for (const Correlation& c : Correlations(explanation)) {
    correlations.push_back({{"kind", c.kind},
                            {"measure", c.measure},
                            {"n_policies", c.n_policies},
                            {"accuracy", OrNull(c.with_accuracy)},
                            {"kl", OrNull(c.with_kl)}});
  }
  return Json{{"top_share", explanation.top_share},
              {"concentration", std::move(concentration)},
              {"spectrum", std::move(spectra)},
              {"rank_correlation", std::move(correlations)}};
}

void PrintExplanation(const Explanation& explanation) {
  Table layers(
      {"policy", "kind", "layer", "L1 loss", "of output", "bound by head", "bound", "retained", "similarity"},
      "llrrrrrrr");
  for (const ExplainRow& row : explanation.rows) {
    const std::vector<double> relative = RelativeLayers(row.sums);
    for (size_t l = 0; l < row.sums.layers.size(); ++l) {
      const auto mean = [&](size_t measure) {
        return Format("%.4g", LayersOf(row.sums, kMeasures[measure].of)[l]);
      };
      layers.AddRow({row.spec, row.kind, std::to_string(l), mean(0), FormatPercent(relative[l]), mean(2),
                     mean(1), FormatPercent(LayersOf(row.sums, kMeasures[3].of)[l]),
                     Format("%.4f", SimilarityOf(row.sums)[l])});
    }
  }
  Print("\n" + layers.Text());
  Table heads({"kind", "layer", "least", "mean", "most"}, "lrrrr");
  for (const ExplainKind& kind : explanation.kinds) {
    const std::vector<double> values = Concentration(kind);
    for (auto at = values.begin(); at != values.end(); at += explanation.n_heads) {
      const auto end = at + explanation.n_heads;
      heads.AddRow({kind.kind, std::to_string((at - values.begin()) / explanation.n_heads),
                    FormatPercent(*std::min_element(at, end)), FormatPercent(Mean({at, end})),
                    FormatPercent(*std::max_element(at, end))});
    }
  }
  Print(Format("\nattention of the most attended %g %% of the entries, over the heads of a layer\n",
               100 * explanation.top_share) +
        heads.Text());
  PrintSpectra(explanation);
  std::vector<std::string> parts = {"policy", "kind"};
  for (size_t i = 1; i <= kParts; ++i) parts.push_back(std::to_string(i));
  Table kept(parts, "ll" + std::string(kParts, 'r'));
  for (const ExplainRow& row : explanation.rows) {
    std::vector<std::string> cells = {row.spec, row.kind};
    for (const double share : KeptByPosition(row.sums)) cells.push_back(FormatPercent(share));
    kept.AddRow(cells);
  }
  Print("\nkept of every tenth of the prompt, mean over heads\n" + kept.Text());
  const std::vector<Correlation> correlations = Correlations(explanation);
  if (correlations.empty()) return;
  Table ranks({"kind", "measure", "policies", "with accuracy", "with KL"}, "llrrr");
  for (const Correlation& c : correlations) {
    ranks.AddRow(
        {c.kind, c.measure, std::to_string(c.n_policies), OrDash(c.with_accuracy), OrDash(c.with_kl)});
  }
  Print("\nrank correlation (Spearman) over the policies that drop something\n" + ranks.Text());
}

std::string ExplainPicture(const Explanation& explanation) {
  SvgPage page;
  for (const ExplainKind& kind : explanation.kinds) {
    page.Add(HeatMap{Format("%s: attention of the top %g %% of the entries", kind.kind.c_str(),
                            100 * explanation.top_share),
                     "layer", "head", "", explanation.n_layers, explanation.n_heads, Concentration(kind),
                     false});
    DrawSpectra(kind, &page);
    LineChart loss{kind.kind + ": L1 eviction loss", "layer", "loss", {}, 0, ""},
        bound{kind.kind + ": bound of the loss", "layer", "bound", {}, 0, ""},
        retained{kind.kind + ": attention that stays", "layer", "share", {}, 0, ""},
        similarity{kind.kind + ": attention similarity", "layer", "cosine", {}, 0, ""},
        kept{kind.kind + ": kept of every tenth of the prompt", "tenth", "share", {}, 0, ""},
        against{kind.kind + ": loss and accuracy", "loss / output, mean over layers", "accuracy", {}, 0, ""};
    against.is_scatter = true;
    for (const ExplainRow& row : explanation.rows) {
      if (row.kind != kind.kind || row.sums.n_queries == 0) continue;
      std::vector<double> x;
      for (size_t l = 0; l < row.sums.layers.size(); ++l) x.push_back(static_cast<double>(l));
      const std::string name = ShortName(row.spec);
      loss.series.push_back({name, x, LayersOf(row.sums, kMeasures[0].of)});
      bound.series.push_back({name, x, LayersOf(row.sums, kMeasures[1].of)});
      retained.series.push_back({name, x, LayersOf(row.sums, kMeasures[3].of)});
      similarity.series.push_back({name, x, SimilarityOf(row.sums)});
      std::vector<double> tenths;
      for (size_t i = 1; i <= kParts; ++i) tenths.push_back(static_cast<double>(i));
      kept.series.push_back({name, tenths, KeptByPosition(row.sums)});
      against.series.push_back({name, {Mean(RelativeLayers(row.sums))}, {row.accuracy}});
    }
    for (const LineChart& chart : {loss, bound, retained, similarity, kept, against}) page.Add(chart);
  }
  return page.Text();
}

}  // namespace kvc::tool
