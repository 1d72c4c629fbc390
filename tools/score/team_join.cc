// Whether there is a team, and the module that speaks for it.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "tools/failure.h"
#include "tools/score/team.h"

namespace kvc::tool {
namespace {

bool StartedByLauncher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

// Several processes for certain: PMIX_RANK alone does not say.
bool SeveralProcesses() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* size = std::getenv(name);
    if (size != nullptr && std::atoi(size) > 1) return true;
  }
  return false;
}

}  // namespace

std::unique_ptr<Team> Team::Join() {
  if (!StartedByLauncher()) return nullptr;
  // Found beside the program or below lib/kvc of its prefix (its RUNPATH). Open MPI's own plug-ins look for
  // the names of its library, so these must be visible to all.
  void* module = dlopen("kvc-mpi.so", RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    const char* problem = dlerror();
    if (!SeveralProcesses()) return nullptr;
    throw UsageError(
        std::string("several processes were started, and the module for MPI cannot be loaded: ") +
        (problem != nullptr ? problem : "kvc-mpi.so") +
        ". Install it (Debian: libopenmpi-dev before kvc is built; kvc-mpi.so belongs to the "
        "package of kvc), or use --shard");
  }
  const auto join = reinterpret_cast<decltype(&KvcJoinTeam)>(dlsym(module, "KvcJoinTeam"));
  Team* team = nullptr;
  if (join == nullptr || join(&team) != 0) throw Failure("MPI does not start");
  return std::unique_ptr<Team>(team);
}

}  // namespace kvc::tool
