// How far a call of the library is, shown from another thread while the call runs.
#pragma once
#include <functional>
#include <memory>
#include <string>

namespace kvc::tool {

// While it lives, once that takes half a second: the share (0 to 1; 1 = nothing runs) as a Progress line.
// Does nothing when stderr is no terminal. share is called on a thread of this object's.
class Watch {
 public:
  Watch(const std::string& label, std::function<double()> share);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvc::tool
