// What a pass over the weights costs that checks a draft, for kvc bench, beside plain steps in the same
// rounds.
#pragma once
#include <vector>

#include "tools/bench_work.h"

namespace kvc::tool {

constexpr int32_t kMostDrafted = 31;  // that kvc_session_step_draft looks at

// Medians over the rounds.
struct DraftSpeed {
  int32_t n_drafted = 0;
  double step = 0, pass = 0;  // seconds of a plain step, of a pass whose draft is right
  double in_steps = 0;        // the pass in times of a step
  double best = 0;            // tokens a second where every draft is right, in times of plain steps
};

// The session goes on from where it is; drafts are the tokens that plain steps of a fork gave. Where the
// answer would end among them, the session has no stop tokens any more.
std::vector<DraftSpeed> MeasureDrafts(const Model& model, Session* session,
                                      const std::vector<int32_t>& lengths, int32_t repeat);

// Fails where drafts cannot be measured: before the work.
void TryDraft(Session* session, int32_t n_drafted);

Json DraftsJson(const std::vector<DraftSpeed>& drafts);  // [lengths]
std::string DraftText(const std::vector<DraftSpeed>& drafts);

}  // namespace kvc::tool
