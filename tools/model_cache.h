// Models as people have them: what is no model file yet is converted once, into a folder of the user's.
#pragma once
#include <string>

#include "tools/signals.h"

namespace kvc::tool {

// $KVC_CACHE, else $XDG_CACHE_HOME/kvc, else ~/.cache/kvc (Windows: %LOCALAPPDATA%\kvc). Throws Failure where
// none of these is set.
std::string CacheFolder();

// The model file for `path`: itself, or, where it is a GGUF file or a folder, what that was converted into
// the first time; again where it, or another part of a model in several files, has changed since (name,
// sizes, times) or the program has. Says on stderr what it does, with progress; before it converts it removes
// what conversions that were killed a day ago or earlier left in the folder. Throws Failure, with the way
// out, where the folder cannot be made or written, or the source cannot be converted.
std::string ModelFileFor(const std::string& path, Signals* signals);
// Head scores that lie beside a checkpoint are nobody's standard, so no conversion takes them by itself: how
// to ask for them, in words; empty: there are none.
std::string ScoresBeside(const std::string& source);
// Of a file that ModelFileFor gave: the next call converts again.
void ForgetModelFile(const std::string& path);

}  // namespace kvc::tool
