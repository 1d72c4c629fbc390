// kvc licenses: what this program is made of, and under which terms.
#include "tools/command.h"
#include "licenses_generated.h"
#include "tools/output.h"

namespace kvc::tool {

Action AddLicenses(CLI::App*) {
  return [](Signals*) {
    Print(std::string(kNotice) + "\nLICENSE\n=======\n" + kLicense);
    return kExitGood;
  };
}

}  // namespace kvc::tool
