// Reads a document once, keeps a compressed cache of it, and answers any number of questions from that:
// ask_document MODEL.kvc POLICY DOCUMENT QUESTION...
// for example: ask_document recall.kvc cokv-document:budget=24 text.txt "The code of Zachary is"
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "kvc/kvc.hpp"

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: " << argv[0] << " MODEL.kvc POLICY DOCUMENT QUESTION...\n";
    return 2;
  }
  std::string text;
  try {
    std::ifstream file(argv[3], std::ios::binary);
    file.exceptions(std::ios::badbit | std::ios::failbit);  // also of one that could not be opened
    text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  } catch (const std::ios_base::failure&) {
    std::cerr << "cannot read " << argv[3] << "\n";
    return 1;
  }
  try {
    const kvc::Model model(argv[1]);
    kvc::Session document(model, kvc::Policy(argv[2]));
    document.prefill(model.prompt(text));
    const kvc_session_stats stats = document.stats();
    std::cout << stats.n_prompt << " tokens in " << (stats.cache_bytes >> 10) << " KiB instead of "
              << (stats.cache_bytes_full >> 10) << "\n";
    for (int i = 4; i < argc; ++i) {
      // A fork shares the cache of the document, and what is asked of one the others do not see.
      kvc::Session fork = document.fork();
      fork.append(model.tokenize(std::string(" ") + argv[i], KVC_CONTINUE));
      std::cout << argv[i];
      fork.generate(6, [](const std::string& piece) {
        if (piece.find('.') != std::string::npos) return false;
        std::cout << piece << std::flush;
        return true;
      });
      std::cout << "\n";
    }
  } catch (const kvc::Error& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
