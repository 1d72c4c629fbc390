// Several processes at one measurement, started together by mpirun or srun. The first one coordinates: it
// plans, hands out work to whoever is free, keeps the log and does all the talking; the others measure. So
// what is measured and in which file it stands does not depend on how many they are. The coordinator does not
// measure: it always answers at once, and it costs next to no processor time, so start one process more than
// there are places to work.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "tools/score/work_log.h"

namespace kvc::tool {

using WorkChunk = std::vector<WorkKey>;
using ChunkResults = std::vector<WorkResult>;  // of a chunk, in its order

class Team {
 public:
  // The processes started together with this one; null: it works alone. Throws UsageError when a launcher
  // started several and the module that speaks MPI is not there.
  static std::unique_ptr<Team> Join();
  virtual ~Team() = default;

  virtual bool coordinates() const = 0;
  virtual int n_workers() const = 0;
  virtual int n_here() const = 0;  // processes of the team on this machine
  // The others wait until the coordinator comes here: what is wrong for all is then said once.
  virtual void Begin() = 0;
  // Coordinator: every chunk to some worker; on_results as they come back, in any order; idle many times a
  // second. Throws what these throw.
  virtual void Distribute(const std::vector<WorkChunk>& chunks,
                          const std::function<void(const WorkChunk&, const ChunkResults&)>& on_results,
                          const std::function<void()>& idle) = 0;
  // Coordinator: nothing more to do.
  virtual void Dismiss() = 0;
  // The others: measures what is handed out until dismissed.
  virtual void Serve(const std::function<ChunkResults(const WorkChunk&)>& measure) = 0;
  // Ends all processes.
  virtual void Abort(int exit_code) = 0;
};

}  // namespace kvc::tool

// What the module kvc-mpi.so has: starts MPI. The team, which the caller deletes, or null when there is one
// process only; not 0: MPI does not start.
extern "C" __attribute__((visibility("default"))) int KvcJoinTeam(kvc::tool::Team** out_team);
