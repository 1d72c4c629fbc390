#include "tools/bench_draft.h"

#include <cmath>
#include <optional>

#include "tools/failure.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct Round {
  double step, pass;
};

// From now on no stop token is chosen, by forks too: a draft cannot be checked beyond the end of an answer.
void ForbidStopTokens(const Model& model, Session* session) {
  const TokenList stops = model.StopTokens();
  const std::vector<float> never(stops.size(), -INFINITY);
  Check(kvc_session_set_logit_bias(session->get(), stops.data(), never.data(),
                                   static_cast<int32_t>(stops.size())),
        "cannot keep the answer from ending");
}

// Plain steps of one fork, then the same tokens as a draft for another. Nothing: the answer ended on the way.
std::optional<Round> MeasureRound(Session* session, int32_t n_drafted) {
  std::optional<Session> plain = session->Fork(), drafted = session->Fork();
  if (!plain || !drafted) throw Failure("drafts are measured on forks, which this library does not make");
  if (!plain->Step() || !drafted->Step()) return std::nullopt;  // pages that both share are copied
  TokenList answer;
  Clock::time_point start = Clock::now();
  for (int32_t i = 0; i <= n_drafted; ++i) {
    const std::optional<int32_t> token = plain->Step();
    if (!token) return std::nullopt;
    answer.push_back(*token);
  }
  const double steps = SecondsSince(start);
  TokenList draft(answer.begin(), answer.end() - 1);
  start = Clock::now();
  const TokenList tokens = drafted->StepDraft(draft, n_drafted + 1);
  const double pass = SecondsSince(start);
  if (tokens.size() == 1 && n_drafted > 0)
    throw Failure("this policy does more than append at steps: drafts are not looked at");
  if (tokens != answer) throw Failure("a draft changed the answer");
  return Round{steps / (n_drafted + 1), pass};
}

}  // namespace

void TryDraft(Session* session, int32_t n_drafted) { MeasureRound(session, n_drafted); }

std::vector<DraftSpeed> MeasureDrafts(const Model& model, Session* session,
                                      const std::vector<int32_t>& lengths, int32_t repeat) {
  std::vector<DraftSpeed> result;
  for (const int32_t n_drafted : lengths) {
    std::vector<double> step, pass, in_steps;
    for (int32_t i = 0; i <= repeat; ++i) {
      std::optional<Round> round = MeasureRound(session, n_drafted);
      if (!round) {
        ForbidStopTokens(model, session);
        round = MeasureRound(session, n_drafted);
      }
      if (!round) throw Failure(Format("the answer ended before a draft of %d tokens", n_drafted));
      if (i == 0) continue;  // buffers that grow
      step.push_back(round->step);
      pass.push_back(round->pass);
      in_steps.push_back(Ratio(round->pass, round->step));
    }
    const double cost = Median(in_steps);
    result.push_back({n_drafted, Median(step), Median(pass), cost, Ratio(n_drafted + 1, cost)});
  }
  return result;
}

Json DraftsJson(const std::vector<DraftSpeed>& drafts) {
  Json out = Json::array();
  for (const DraftSpeed& d : drafts) {
    out.push_back({{"n_drafted", d.n_drafted},
                   {"step_seconds", d.step},
                   {"pass_seconds", d.pass},
                   {"pass_in_steps", d.in_steps},
                   {"times_plain_at_best", d.best}});
  }
  return out;
}

std::string DraftText(const std::vector<DraftSpeed>& drafts) {
  if (drafts.empty()) return "";
  Table table({"draft", "step", "pass", "in steps", "times plain at best"}, "rrrrr");
  for (const DraftSpeed& d : drafts) {
    table.AddRow({FormatCount(d.n_drafted), FormatSeconds(d.step), FormatSeconds(d.pass),
                  Format("%.2f", d.in_steps), Format("%.2f", d.best)});
  }
  return "\ndrafts, checked in one pass (kvc run --draft)\n" + table.Text();
}

}  // namespace kvc::tool
