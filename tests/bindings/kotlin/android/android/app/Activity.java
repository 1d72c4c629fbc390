package android.app;

import android.content.res.AssetManager;
import android.os.Bundle;
import android.view.View;
import java.io.File;

public class Activity {
  protected void onCreate(Bundle state) {}

  protected void onDestroy() {}

  public void setContentView(int layout) {}

  public <T extends View> T findViewById(int id) {
    return null;
  }

  public AssetManager getAssets() {
    return null;
  }

  public File getFilesDir() {
    return null;
  }

  public String getPackageCodePath() {
    return null;
  }

  public final void runOnUiThread(Runnable action) {}
}
