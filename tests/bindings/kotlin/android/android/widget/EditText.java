package android.widget;

import android.text.Editable;

public class EditText extends TextView {
  @Override
  public Editable getText() {
    return null;
  }
}
