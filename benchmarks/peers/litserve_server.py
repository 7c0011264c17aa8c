"""An ONNX model behind LitServe: `python litserve_server.py MODEL.onnx PORT`. Batches of up to 32."""

import sys

import litserve
import numpy as np
import onnxruntime


class OnnxApi(litserve.LitAPI):
    def setup(self, device):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name

    def decode_request(self, request):
        return np.array(request["inputs"][0]["data"], np.float32).reshape(1, 28, 28)

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, batch):
        return self.session.run(None, {self.name: batch})[0]

    def unbatch(self, outputs):
        return list(outputs)

    def encode_response(self, output):
        return {"output": output.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(
        OnnxApi(max_batch_size=32, batch_timeout=0.002), accelerator="cpu", workers_per_device=1, timeout=30
    )
    server.run(
        host="127.0.0.1", port=int(sys.argv[2]), num_api_servers=1, generate_client_file=False, log_level="error"
    )
