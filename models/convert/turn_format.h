// Recognises the chat formats that models commonly use by the markers in their (Jinja) template.
#pragma once
#include <string>

#include "lib/model/model_file.h"

namespace kvc {

// Empty when the template is of no known family. BOS is not part of the markers.
TurnFormat RecognizeTurnFormat(const std::string& chat_template);

}  // namespace kvc
